"""What single requests change in their logits before a token is chosen: bans, bias and penalties.

The order and meaning are vLLM's (`vllm/v1/sample/sampler.py`): bad words, minimum length, bias, then repetition,
frequency and presence penalties. Everything is derived from the request's tokens at each step, so a preempted request
goes on as if nothing had happened. Knows nothing of how the token is chosen.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from orthrus_backend.draws import LARGEST
from orthrus_backend.request import GenerateRequest

Cells = list[tuple[int, int, float]]  # (row, token id, value)


def edited(logits: Tensor, requests: Sequence[GenerateRequest], vocab_size: int) -> Tensor:
    """The logits that tokens are chosen from.

    Args:
        logits: [R, P] float32 without NaN or +inf; P >= vocab_size.
        requests: the R requests of the rows.
        vocab_size: ids from here on are left alone, whoever names them.

    Returns:
        [R, P]: `logits` itself where no request asks for a change, else a changed copy; banned tokens are -inf. Bans
        that leave a row nothing are dropped, with all other edits of that row.
    """
    bans: Cells = [(row, token, 0.0) for row, r in enumerate(requests) for token in _banned(r)]
    bias: Cells = [
        (row, token, value) for row, r in enumerate(requests) for token, value in r.params.logit_bias.items()
    ]
    repeated: Cells = [
        (row, token, r.params.repetition_penalty) for row, r in enumerate(requests) for token in _seen(r)
    ]
    produced: Cells = [(row, token, value) for row, r in enumerate(requests) for token, value in _overused(r)]
    if not (bans or bias or repeated or produced):
        return logits
    scores = logits.clone()
    if (cells := _cells(bans, vocab_size, logits.device)) is not None:
        at, _ = cells
        scores[at] = float("-inf")
    if (cells := _cells(bias, vocab_size, logits.device)) is not None:
        at, value = cells
        scores[at] += value
    if (cells := _cells(repeated, vocab_size, logits.device)) is not None:
        at, value = cells
        old = scores[at]
        scores[at] = torch.where(old > 0, old / value, old * value)
    if (cells := _cells(produced, vocab_size, logits.device)) is not None:
        at, value = cells
        scores[at] -= value
    scores.clamp_(max=LARGEST)
    empty = scores.amax(-1, keepdim=True) == float("-inf")  # [R, 1]
    return torch.where(empty, logits, scores)


def _banned(request: GenerateRequest) -> Iterator[int]:
    """Tokens that must not come next: the ends of bad words, and all that would stop too early."""
    for *before, last in request.bad_words:
        if len(before) <= request.produced and request.tokens[len(request.tokens) - len(before) :] == before:
            yield last
    if request.produced < request.params.min_tokens:
        yield from request.stop_ids


def _seen(request: GenerateRequest) -> set[int]:
    """Tokens of prompt and output, where repeating them is penalised."""
    return set(request.tokens) if request.params.repetition_penalty != 1.0 else set()


def _overused(request: GenerateRequest) -> Iterator[tuple[int, float]]:
    """Output tokens, and what their presence and frequency take from their logits."""
    params = request.params
    if params.presence_penalty or params.frequency_penalty:
        for token, count in Counter(request.tokens[request.prompt_length :]).items():
            yield token, params.presence_penalty + params.frequency_penalty * count


def _cells(cells: Cells, vocab_size: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor] | None:
    """Row and column indices [n], and values [n] float32, of cells inside the vocabulary; None where there are none."""
    inside = [cell for cell in cells if 0 <= cell[1] < vocab_size]
    if not inside:
        return None
    rows, columns, values = torch.tensor(inside, dtype=torch.float64).T.to(device)  # ids are exact in float64
    return (rows.long(), columns.long()), values.float()
