"""Draws tokens at random from rows of scores. Knows nothing of requests: controls and random numbers are given.

Rows are float32 in whole blocks (`in_blocks`), so that sums and maxima are taken in two small steps, and each row is
computed from itself alone. Tokens rank by score, equals by lower id first, whatever order a sort would give them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256  # tokens that are summed up before single ones are looked at
LARGEST = torch.finfo(torch.float32).max
BELOW_ONE = 1 - 2**-52


@dataclass(frozen=True, slots=True, eq=False)
class Controls:
    """How each of n rows is drawn from."""

    temperature: Tensor  # [n, 1] float32, > 0
    min_p: Tensor | None  # [n, 1] float32, 0: off; None where it is off in every row
    top_p: Tensor  # [n, 1] float64; 1: off
    top_k: Tensor  # [n, 1] int64; the size of the vocabulary: off
    uniform: Tensor  # [n, 1] float64 in [0, 1): the random number that the row spends


def in_blocks(logits: Tensor) -> Tensor:
    """A float32 copy of logits [R, V], filled up with -inf to [R, P], P a multiple of `BLOCK`. NaN becomes -inf."""
    rows, vocab_size = logits.shape
    copy = torch.empty(rows, -(-vocab_size // BLOCK) * BLOCK, device=logits.device)  # [R, P]
    copy[:, :vocab_size] = logits
    copy[:, vocab_size:] = float("-inf")
    return torch.nan_to_num_(copy, nan=float("-inf"), posinf=LARGEST, neginf=float("-inf"))


def likeliest(scores: Tensor) -> Tensor:
    """The first-ranked token of each row of scores [R, P]: [R].

    Block by block, because PyTorch's own argmax over a vocabulary is ten times slower on CPU.
    """
    blocks = scores.view(len(scores), -1, BLOCK)  # [R, P / BLOCK, BLOCK]
    rows = torch.arange(len(scores), device=scores.device)
    best = blocks.amax(-1).argmax(-1)  # [R]; argmax takes the first of equals
    return best * BLOCK + blocks[rows, best].argmax(-1)


def ranked(scores: Tensor, vocab_size: int, count: int) -> tuple[Tensor, Tensor]:
    """The `count` first-ranked tokens of each row of scores [n, P]: their scores and ids, both [n, count].

    Of tokens that equal the last one, any may be missing, unless `count` is the whole vocabulary.
    """
    if count < vocab_size:
        _, ids = scores.topk(count, sorted=False)
        ids = ids.sort().values
    else:
        ids = torch.arange(vocab_size, device=scores.device).expand(len(scores), -1)
    values, order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return values, ids.gather(1, order)


def draw(scores: Tensor, controls: Controls) -> Tensor:
    """Draw a token from each row after temperature and min_p; top_k and top_p are not looked at.

    Args:
        scores: [n, P] from `in_blocks`; -inf where a token is banned. A row that is all -inf gives token 0.
        controls: how each row is drawn from.
    """
    return _walk(_weights(scores, controls), controls.uniform)


def draw_top(scores: Tensor, controls: Controls, vocab_size: int, candidates: int) -> tuple[Tensor, Tensor]:
    """Draw a token from each row after temperature, min_p, top_k and top_p, in this order.

    A token stays while the mass before it is below top_p of what top_k left, so the first always stays.

    Args:
        scores: as for `draw`.
        controls: how each row is drawn from.
        vocab_size: tokens from here on are only filling.
        candidates: how many of the likeliest tokens top_k and top_p look at.

    Returns:
        tokens [n], and whether the candidates were enough to be sure of each, [n] bool: if not, ask with more.
    """
    weights = _weights(scores, controls)  # [n, P]
    values, ids = ranked(scores, vocab_size, candidates)  # [n, C]
    weight = weights.gather(1, ids).double()  # [n, C]
    weight *= torch.arange(candidates, device=scores.device) < controls.top_k
    no_top_k = controls.top_k == vocab_size
    mass = torch.where(no_top_k, _block_sums(weights).sum(1, keepdim=True), weight.sum(1, keepdim=True))
    stays = (weight.cumsum(1) - weight < controls.top_p * mass) & (weight > 0)  # [n, C], a run from the left
    last = stays.sum(1, keepdim=True).sub_(1).clamp_(min=0)  # [n, 1]
    # sure, if the run ends before the candidates do, also those that equal the last one
    sure = (values.gather(1, last) > values[:, -1:]) & ((controls.top_k <= candidates) | no_top_k)
    weights.zero_().scatter_(1, ids, (weight * stays).float())
    return _walk(weights, controls.uniform), sure[:, 0] | (candidates == vocab_size)


def _weights(scores: Tensor, controls: Controls) -> Tensor:
    """Probabilities after temperature and min_p, as multiples of the likeliest token's: [n, P]."""
    top = scores.amax(1, keepdim=True).clamp_(min=-LARGEST)  # [n, 1]
    weights = (scores - top).div_(controls.temperature).exp_()
    return weights if controls.min_p is None else weights.masked_fill_(weights < controls.min_p, 0.0)


def _block_sums(weights: Tensor) -> Tensor:
    return weights.view(len(weights), -1, BLOCK).sum(-1).double()  # [n, P / BLOCK]


def _walk(weights: Tensor, uniform: Tensor) -> Tensor:
    """Inverse of the cumulative distribution in the order of ids: the first token at which it passes `uniform`, [n]."""
    rows = torch.arange(len(weights), device=weights.device)
    sums = _block_sums(weights)
    reached = sums.cumsum(1)  # [n, P / BLOCK]
    goal = uniform * reached[:, -1:]  # [n, 1]
    block = (reached <= goal).sum(1).clamp_(max=sums.shape[1] - 1)  # [n]
    inside = weights.view(len(weights), -1, BLOCK)[rows, block].double().cumsum(1)  # [n, BLOCK]
    goal = goal - (reached - sums)[rows, block, None]
    # the two ways of adding up differ by rounding: stay inside the block, on a token that has weight
    goal = torch.minimum(goal.clamp_(min=0.0), inside[:, -1:] * BELOW_ONE)
    token = block * BLOCK + (inside <= goal).sum(1)
    return torch.where(reached[:, -1] > 0, token, 0)
