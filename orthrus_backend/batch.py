"""The tensors of one step, built once from its plan. Knows nothing of layers, heads or requests' meaning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from orthrus_backend.plan import Plan, Role
from orthrus_backend.request import AdapterHandle


@dataclass(frozen=True, slots=True)
class Rows:
    """Where one slice lies in the packed batch: rows `start` to `stop` hold its tokens from position `offset` on."""

    start: int
    stop: int
    offset: int
    blocks: tuple[int, ...]  # of the whole request; empty where nothing is kept

    @property
    def context(self) -> int:
        """Keys that its last row attends to."""
        return self.offset + self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """One packed forward pass over `T` tokens."""

    input_ids: Tensor  # [T]
    positions: Tensor  # [T]
    chunks: tuple[Rows, ...]  # embed and prefill slices, in row order
    decodes: tuple[Rows, ...]  # one row each, after all chunks
    kept_rows: Tensor  # [W] rows whose keys and values are kept ...
    kept_slots: Tensor  # [W] ... and where: block * block_size + offset
    sample_rows: Tensor  # [S] rows that choose a token
    adapters: tuple[tuple[AdapterHandle, int, int], ...]  # (adapter, first row, last row + 1)


def build_batch(plan: Plan, block_size: int, device: torch.device) -> Batch:
    """Lay out a plan's tokens in its row order."""
    ids: list[int] = []
    positions: list[int] = []
    kept_rows: list[int] = []
    kept_slots: list[int] = []
    sample_rows: list[int] = []
    chunks: list[Rows] = []
    decodes: list[Rows] = []
    adapters: list[tuple[AdapterHandle, int, int]] = []
    for s in plan.slices:
        request, first = s.request, len(ids)
        ids += request.tokens[s.start : s.stop]
        positions += range(s.start, s.stop)
        rows = Rows(first, len(ids), s.start, tuple(request.blocks))
        (decodes if s.role is Role.DECODE else chunks).append(rows)
        if request.blocks:
            kept_rows += range(first, len(ids))
            kept_slots += (
                request.blocks[position // block_size] * block_size + position % block_size
                for position in range(s.start, s.stop)
            )
        if s.role is not Role.EMBED and s.completes:
            sample_rows.append(len(ids) - 1)
        if request.adapter is not None:
            if adapters and adapters[-1][0] is request.adapter and adapters[-1][2] == first:
                adapters[-1] = (request.adapter, adapters[-1][1], len(ids))
            else:
                adapters.append((request.adapter, first, len(ids)))
    packed = torch.tensor(ids + positions + kept_rows + kept_slots + sample_rows, dtype=torch.long).to(device)
    sizes = [len(ids), len(positions), len(kept_rows), len(kept_slots), len(sample_rows)]
    input_ids, position_ids, rows_kept, slots_kept, rows_sampled = packed.split(sizes)  # one transfer for all
    return Batch(
        input_ids,
        position_ids,
        tuple(chunks),
        tuple(decodes),
        rows_kept,
        slots_kept,
        rows_sampled,
        tuple(adapters),
    )
