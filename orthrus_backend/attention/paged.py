"""Attention on the CPU by compiled kernels: chunks and decodes of a step in one call a layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.batch import Batch
from orthrus_backend.kv_cache import KVCache, LayerShape
from orthrus_backend.native.ops import DTYPES, HEAD_DIMS, LARGEST_GROUP, Kernels


def fits(device: torch.device, dtype: torch.dtype, shapes: Sequence[LayerShape]) -> bool:
    """Whether the kernels know such layers; a model without kept keys and values (an encoder) is none for them."""
    sizes = {size for shape in shapes for size in (shape.key_dim, shape.value_dim)}
    same = all(shape.key_dim == shape.value_dim for shape in shapes)
    known = same and sizes <= set(HEAD_DIMS) and all(shape.group <= LARGEST_GROUP for shape in shapes)
    return device.type == "cpu" and dtype in DTYPES and bool(shapes) and known


class PagedAttention:
    """Causal attention with windows and capped scores, over a paged cache or over the batch's own rows."""

    block_size = 16

    def __init__(self, dtype: torch.dtype, tiles: bool = True) -> None:
        """Raises `NotCompiledError` where the kernels cannot be compiled. `tiles`: see `Kernels`."""
        self.kernels = Kernels(dtype, tiles)

    def begin(self, batch: Batch, cache: KVCache) -> "PagedStep":
        return PagedStep(self.kernels, batch, cache)


class PagedStep:
    """Where the keys of one step's slices are, shared by all layers."""

    def __init__(self, kernels: Kernels, batch: Batch, cache: KVCache) -> None:
        self._kernels = kernels
        self.cache = cache
        items: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        for rows in (*batch.chunks, *batch.decodes):
            # the first chunk's keys are all in the batch, side by side: no need to look for them in blocks
            items.append((rows.start, rows.stop - rows.start, rows.offset, len(blocks) if rows.offset else -1))
            if rows.offset:
                blocks += rows.blocks
        self.items = torch.tensor(items, dtype=torch.long)  # as `Kernels.attend` takes them, as are the next
        self.blocks = torch.tensor(blocks, dtype=torch.int32)
        self.slots = torch.full((len(batch.input_ids),), -1)  # as `Kernels.keep` takes them
        self.slots[batch.kept_rows] = batch.kept_slots

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        query, key, value = (_dense(tensor) for tensor in (query, key, value))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        self._kernels.keep(key, value, keys, values, self.slots)
        seen = self._kernels.attend(
            query,
            key,
            value,
            keys,
            values,
            self.items,
            self.blocks,
            self.cache.block_size,
            spec.scale,
            spec.window,
            spec.softcap,
        )
        seen[len(self.slots) :] = 0
        return seen


def _dense(rows: Tensor) -> Tensor:
    """The heads of a row side by side: [T, heads, dim], of which only the rows may lie apart."""
    return rows if rows.stride()[1:] == (rows.shape[2], 1) else rows.contiguous()
