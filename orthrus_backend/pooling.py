"""Turns hidden states into one vector per text, chunk by chunk.

Every pooling mode is `e = S / W` with `S = sum(w h)` and `W = sum(w)` over the rows it counts, so what is carried from
chunk to chunk is one vector and one number, in float32 whatever the model's dtype:

- mean: every row, `w = 1`
- weighted_mean: every row, `w` = its 1-based position in the whole text (SGPT, arXiv:2202.08904)
- cls: the text's first row
- last: the chunk's last row, which replaces what earlier chunks left

Knows nothing of models, and changes no request: a new state is a new value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from orthrus_backend.params import PoolingMode
from orthrus_backend.plan import Slice
from orthrus_backend.request import EmbedRequest

Vector = npt.NDArray[np.float32]  # [D]


@dataclass(frozen=True, slots=True, eq=False)
class PoolState:
    """What is known of one text after some of its chunks."""

    total: Tensor  # [d] float32: S
    weight: float  # W


def pool_chunk(hidden: Tensor, start: int, mode: PoolingMode, state: PoolState | None) -> PoolState:
    """Add one chunk of a text to its state.

    Args:
        hidden: [n, d], rows after the model's final norm, any float dtype.
        start: position of the chunk's first row in the text.
        mode: how the text is pooled.
        state: what the chunks before this one left; None at the start of the text.
    """
    counted = _counted_rows(start, len(hidden), mode)
    weights = _weights(start, counted, mode)
    return _carry(state, _segment_sums(hidden[counted.start : counted.stop], [weights])[0], weights, mode)


def finish(state: PoolState, dimensions: int | None, normalize: bool) -> Vector:
    """The vector of a text whose chunks are all in: divided, cut to `dimensions`, then L2-normalised, in that order.

    Returns:
        [D] float32, on the host. A zero vector stays zero.
    """
    return _vector(_to_host([state.total])[0], state.weight, dimensions, normalize)


def pool_slices(hidden: Tensor, embeds: Sequence[Slice]) -> list[PoolState | Vector]:
    """Pool the embed slices of a step, with one transfer from the device.

    Args:
        hidden: [T, d], rows after the model's final norm; the slices' rows come first, in order.
        embeds: `plan.embeds`.

    Returns:
        For each slice the new state, or the finished vector [D] where the slice completes its text.
    """
    if not embeds:
        return []
    requests = [_embed_request(s) for s in embeds]
    rows, weights, offset = [], [], 0
    for s, request in zip(embeds, requests, strict=True):
        counted = _counted_rows(s.start, s.length, request.pooling)
        rows.append(np.arange(offset + counted.start, offset + counted.stop))
        weights.append(_weights(s.start, counted, request.pooling))
        offset += s.length
    index = torch.from_numpy(np.concatenate(rows)).to(hidden.device)  # [rows that count]
    totals = _segment_sums(hidden[index], weights)  # [slices, d]
    states = [
        _carry(request.pool, total, w, request.pooling)
        for request, total, w in zip(requests, totals, weights, strict=True)
    ]
    vectors = iter(_to_host([state.total for s, state in zip(embeds, states, strict=True) if s.completes]))
    return [
        _vector(next(vectors), state.weight, request.params.dimensions, request.normalize)
        if s.completes
        else PoolState(state.total.clone(), state.weight)  # a view would keep the sums of the whole step alive
        for s, request, state in zip(embeds, requests, states, strict=True)
    ]


def _embed_request(piece: Slice) -> EmbedRequest:
    assert isinstance(piece.request, EmbedRequest), "only embeddings are pooled"
    return piece.request


def _counted_rows(start: int, length: int, mode: PoolingMode) -> range:
    """Which rows of a chunk count."""
    if mode == "cls":
        return range(1 if start == 0 else 0)
    return range(length - 1, length) if mode == "last" else range(length)


def _weights(start: int, counted: range, mode: PoolingMode) -> Vector:
    if mode == "weighted_mean":
        return np.arange(start + 1, start + 1 + len(counted), dtype=np.float32)
    return np.ones(len(counted), dtype=np.float32)


def _segment_sums(rows: Tensor, weights: list[Vector]) -> Tensor:
    """Weighted sums of consecutive runs of `rows` [n, d], one run for each array of weights: [runs, d] float32.

    An empty run gives zero. No run touches another's rows, so a broken row harms its own text only.
    """
    lengths = torch.tensor([len(w) for w in weights], device=rows.device)  # [runs]
    scale = torch.from_numpy(np.concatenate(weights)).to(rows.device)  # [n]
    # unsafe: the lengths are ours, and checking them would wait for the device
    return torch.segment_reduce(rows.float() * scale[:, None], "sum", lengths=lengths, unsafe=True, initial=0.0)


def _carry(before: PoolState | None, total: Tensor, weights: Vector, mode: PoolingMode) -> PoolState:
    weight = float(weights.sum(dtype=np.float64))
    if before is None or mode == "last":
        return PoolState(total, weight)
    return PoolState(before.total + total, before.weight + weight)


def _to_host(totals: list[Tensor]) -> Vector:
    return torch.stack(totals).cpu().numpy() if totals else np.empty((0, 0), np.float32)  # [n, d]


def _vector(total: Vector, weight: float, dimensions: int | None, normalize: bool) -> Vector:
    vector = total[:dimensions] / np.float32(weight)
    if normalize:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)  # as torch.nn.functional.normalize
    return vector.astype(np.float32)
