"""Turns hidden states into one vector per text, chunk by chunk.

Every pooling mode is `S / W` over the rows it counts, so what is carried from chunk to chunk is one vector and one
number for each mode, in float32 whatever the model's dtype:

- mean: `S = sum(h)`, `W` = the number of rows
- mean_sqrt_len: the same with the root of the number of rows
- weighted_mean: `S = sum(w h)`, `W = sum(w)`, `w` = a row's 1-based position in the text (SGPT, arXiv:2202.08904)
- max: `S` = the largest value in each place, `W = 1`
- cls: the first row; last: the chunk's last row, which replaces what earlier chunks left

Rows of a prompt that is not pooled do not count, and keep their positions. Several modes are concatenated. Knows
nothing of models, and changes no request: a new state is a new value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from orthrus_backend.embedding_head import EmbeddingHead
from orthrus_backend.params import PoolingMode
from orthrus_backend.plan import Slice
from orthrus_backend.request import EmbedRequest

Vector = npt.NDArray[np.float32]  # [D]


@dataclass(frozen=True, slots=True, eq=False)
class PoolState:
    """What is known of one text after some of its chunks, mode by mode."""

    totals: Tensor  # [modes, d] float32: S
    weights: tuple[float, ...]  # [modes]: W, for mean_sqrt_len before the root

    def alone(self) -> "PoolState":
        """A copy for later: a view would keep the sums of the whole step alive."""
        return PoolState(self.totals.clone(), self.weights)


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows `start` to `stop` of a step that one mode of one text counts."""

    mode: PoolingMode
    start: int
    stop: int
    weights: Vector  # [stop - start]


def pool_slices(
    hidden: Tensor, embeds: Sequence[Slice], head: EmbeddingHead | None = None
) -> tuple[list[PoolState | Vector], list[PoolState | None]]:
    """Pool the embed slices of a step, with one transfer from the device.

    Args:
        hidden: [T, d], rows after the model's final norm; the slices' rows come first, in order.
        embeds: `plan.embeds`.
        head: what the model does to pooled vectors.

    Returns:
        For each slice the new state, or the finished vector [D] where the slice completes its text: pooled, through
        the head, cut to `dimensions`, then L2-normalised, in that order. A zero vector stays zero. And for each slice
        the state at the end of its text's recurring beginning, or None where the slice does not compute that.
    """
    if not embeds:
        return [], []
    pieces = [piece for s in embeds for piece in _cut_at_border(s)]
    states = _states(hidden, pieces)
    at_ends: list[PoolState] = []
    at_borders: list[PoolState | None] = []
    following = zip(pieces, states, strict=True)
    for s in embeds:
        at_borders.append(None)
        for piece, state in following:
            if piece.stop == _embed_request(s).recurring:
                at_borders[-1] = state.alone()
            if piece.stop == s.stop:
                at_ends.append(state)
                break
    done = [(_embed_request(s), state) for s, state in zip(embeds, at_ends, strict=True) if s.completes]
    vectors = iter(_vectors(done, head))
    ends = zip(embeds, at_ends, strict=True)
    return [next(vectors) if s.completes else state.alone() for s, state in ends], at_borders


def _cut_at_border(s: Slice) -> list[Slice]:
    """The slice, in two parts where its text's recurring beginning ends inside."""
    border = _embed_request(s).recurring
    if not s.start < border < s.stop:
        return [s]
    return [Slice(s.request, s.start, border - s.start), Slice(s.request, border, s.stop - border)]


def _states(hidden: Tensor, pieces: Sequence[Slice]) -> list[PoolState]:
    """What is known of each piece's text after it; pieces of one text follow each other."""
    requests = [_embed_request(piece) for piece in pieces]
    offsets = accumulate((piece.length for piece in pieces), initial=0)
    runs = [
        _run(mode, offset, piece, request.unpooled)
        for piece, request, offset in zip(pieces, requests, offsets, strict=False)
        for mode in request.pooling
    ]
    totals = _reduce(hidden, runs)  # [runs, d]
    ends = accumulate((len(request.pooling) for request in requests), initial=0)
    states: list[PoolState] = []
    last_request: EmbedRequest | None = None
    for request, (first, last) in zip(requests, pairwise(ends), strict=True):
        before = states[-1] if request is last_request else request.pool
        states.append(_carry(before, totals[first:last], runs[first:last]))
        last_request = request
    return states


def _embed_request(piece: Slice) -> EmbedRequest:
    assert isinstance(piece.request, EmbedRequest), "only embeddings are pooled"
    return piece.request


def _run(mode: PoolingMode, offset: int, piece: Slice, unpooled: int) -> _Run:
    """Which rows of a slice count, whose rows begin at `offset`, and how much."""
    first = max(unpooled, piece.start)  # as positions in the text
    if mode == "cls":
        start, stop = first, min(first + (piece.start <= unpooled), piece.stop)
    elif mode == "last":
        start, stop = piece.stop - 1, piece.stop
    else:
        start, stop = first, piece.stop
    stop = max(start, stop)  # none, in a slice that holds only the prompt
    if mode == "weighted_mean":
        weights = np.arange(start + 1, stop + 1, dtype=np.float32)
    else:
        weights = np.ones(stop - start, dtype=np.float32)
    return _Run(mode, start - piece.start + offset, stop - piece.start + offset, weights)


def _reduce(hidden: Tensor, runs: Sequence[_Run]) -> Tensor:
    """The sum, or the maximum, of each run's rows: [runs, d] float32.

    An empty run gives zero, or -inf. No run touches another's rows, so a broken row harms its own text only.
    """
    total = torch.empty(len(runs), hidden.shape[1], dtype=torch.float32, device=hidden.device)
    for reduction, initial in (("sum", 0.0), ("max", -math.inf)):
        chosen = [i for i, run in enumerate(runs) if (run.mode == "max") == (reduction == "max")]
        if not chosen:
            continue
        index = np.concatenate([np.arange(runs[i].start, runs[i].stop) for i in chosen])
        rows = hidden[torch.from_numpy(index).to(hidden.device)].float()  # [rows that count, d]
        if reduction == "sum":
            scale = np.concatenate([runs[i].weights for i in chosen])
            rows = rows * torch.from_numpy(scale).to(hidden.device)[:, None]
        lengths = torch.tensor([len(runs[i].weights) for i in chosen], device=hidden.device)
        # unsafe: the lengths are ours, and checking them would wait for the device
        reduced = torch.segment_reduce(rows, reduction, lengths=lengths, unsafe=True, initial=initial)
        total[torch.tensor(chosen, device=hidden.device)] = reduced
    return total


def _carry(before: PoolState | None, totals: Tensor, runs: Sequence[_Run]) -> PoolState:
    weights = tuple(float(run.weights.sum(dtype=np.float64)) for run in runs)
    if before is None:
        return PoolState(totals, weights)
    merged = before.totals + totals  # [modes, d]
    for mode, row, old, new in zip((run.mode for run in runs), merged, before.totals, totals, strict=True):
        if mode == "last":
            row.copy_(new)
        elif mode == "max":
            torch.maximum(old, new, out=row)
    counted = zip((run.mode for run in runs), before.weights, weights, strict=True)
    return PoolState(merged, tuple(new if mode == "last" else old + new for mode, old, new in counted))


def _vectors(done: Sequence[tuple[EmbedRequest, PoolState]], head: EmbeddingHead | None) -> list[Vector]:
    """The vectors of texts whose chunks are all in."""
    if not done:
        return []
    divisors = [
        _divisor(mode, weight)
        for request, state in done
        for mode, weight in zip(request.pooling, state.weights, strict=True)
    ]
    totals = torch.cat([state.totals for _, state in done])  # [modes of all texts, d]
    pooled = totals / torch.tensor(divisors, device=totals.device)[:, None]
    if head:  # its input has one width, so all texts have as many modes
        pooled = head(pooled.reshape(len(done), -1))  # [n, D]
        sizes = [pooled.shape[1]] * len(done)
    else:
        sizes = [state.totals.numel() for _, state in done]
    flat: Vector = pooled.reshape(-1).cpu().numpy()
    parts = np.split(flat, list(accumulate(sizes))[:-1])
    return [_finished(part, request) for part, (request, _) in zip(parts, done, strict=True)]


def _divisor(mode: PoolingMode, weight: float) -> float:
    if mode == "max":
        return 1.0
    return max(math.sqrt(weight) if mode == "mean_sqrt_len" else weight, 1e-9)


def _finished(vector: Vector, request: EmbedRequest) -> Vector:
    vector = vector[: request.dimensions]
    if request.normalize:
        return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))  # as torch.nn.functional.normalize
    return vector.copy()  # a view would keep the vectors of the whole step alive
