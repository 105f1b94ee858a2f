"""What single requests change in their logits before a token is chosen: bans, bias and penalties.

The order and meaning are vLLM's (`vllm/v1/sample/sampler.py`): bad words, minimum length, bias, then repetition,
frequency and presence penalties. Everything is derived from the request's tokens at each step, so a preempted request
goes on as if nothing had happened. Knows nothing of how the token is chosen.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from orthrus_backend.draws import LARGEST
from orthrus_backend.request import GenerateRequest


class _Cells:
    """Places in a table of logits, row by row and token by token, and a value for each."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: list[int] = []
        self._counts: list[int] = []
        self._tokens: list[int] = []
        self._values: list[float] = []

    def add(self, row: int, tokens: Collection[int], values: Collection[float]) -> None:
        if tokens:
            self._rows.append(row)
            self._counts.append(len(tokens))
            self._tokens.extend(tokens)
            self._values.extend(values)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def on(self, device: torch.device) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Row and column indices, both [n], and values [n] float32, of the places inside the vocabulary."""
        rows, tokens = np.repeat(self._rows, self._counts), np.array(self._tokens)
        inside = (tokens >= 0) & (tokens < self._vocab_size)
        table = np.stack([rows[inside], tokens[inside], np.array(self._values)[inside]])  # float64 holds ids exactly
        place_rows, columns, values = torch.from_numpy(table).to(device)
        return (place_rows.long(), columns.long()), values.float()


def edited(logits: Tensor, requests: Sequence[GenerateRequest], vocab_size: int) -> Tensor:
    """The scores that tokens are chosen by.

    Args:
        logits: [R, P] float32 without NaN or +inf; P >= vocab_size.
        requests: the R requests of the rows.
        vocab_size: ids from here on are left alone, whoever names them.

    Returns:
        [R, P]: `logits` itself where no request asks for a change, else a changed copy; banned tokens are -inf. A row
        that its bans would leave empty keeps its logits.
    """
    bans, bias, repeated, produced = (_Cells(vocab_size) for _ in range(4))
    for row, request in enumerate(requests):
        params = request.params
        banned = list(_banned(request))
        bans.add(row, banned, [float("-inf")] * len(banned))
        bias.add(row, params.logit_bias.keys(), params.logit_bias.values())
        if params.repetition_penalty != 1.0:
            seen = set(request.tokens)
            repeated.add(row, seen, [params.repetition_penalty] * len(seen))
        if params.presence_penalty or params.frequency_penalty:
            counts = Counter(request.tokens[request.prompt_length :])
            cost = [params.presence_penalty + params.frequency_penalty * count for count in counts.values()]
            produced.add(row, counts.keys(), cost)
    if not (bans or bias or repeated or produced):
        return logits
    scores = logits.clone()
    for cells in filter(None, (bans, bias)):
        at, value = cells.on(logits.device)
        scores[at] = (scores[at] + value).clamp_(max=LARGEST)
    if repeated:
        at, value = repeated.on(logits.device)
        old = scores[at]
        scores[at] = torch.where(old > 0, old / value, old * value).clamp_(max=LARGEST)
    if produced:
        at, value = produced.on(logits.device)
        scores[at] = (scores[at] - value).clamp_(max=LARGEST)
    if bans:
        empty = scores.amax(1, keepdim=True) == float("-inf")  # [R, 1]
        scores = torch.where(empty, logits, scores)
    return scores


def leaves_alone(request: GenerateRequest) -> bool:
    """Whether nothing of this request's logits would be changed, at this step or a later one."""
    params = request.params
    plain = params.repetition_penalty == 1.0 and not (params.presence_penalty or params.frequency_penalty)
    return plain and not (params.logit_bias or request.bad_words or request.produced < params.min_tokens)


def _banned(request: GenerateRequest) -> Iterator[int]:
    """Tokens that must not come next: the ends of bad words, and all that would stop too early."""
    for *before, last in request.bad_words:
        if len(before) <= request.produced and request.tokens[len(request.tokens) - len(before) :] == before:
            yield last
    if request.produced < request.params.min_tokens:
        yield from request.stop_ids
