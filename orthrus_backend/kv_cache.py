"""Paged memory for keys and values: one pair of tensors a layer. Knows slots, not who owns them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orthrus_backend.batch import Batch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for a token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    group: int = 1  # query heads that share one head of keys


class KVCache:
    """Blocks of `block_size` tokens. Starts as zeros: slots beyond a sequence are read, masked, and must be finite."""

    def __init__(
        self, shapes: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        slots = num_blocks * block_size
        self.keys = [torch.zeros(slots, s.kv_heads, s.key_dim, dtype=dtype, device=device) for s in shapes]
        self.values = [torch.zeros(slots, s.kv_heads, s.value_dim, dtype=dtype, device=device) for s in shapes]

    @staticmethod
    def block_bytes(shapes: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes) * block_size * dtype.itemsize

    def write(self, layer: int, batch: Batch, key: Tensor, value: Tensor) -> None:
        """Keep what the batch says is kept. `key`, `value`: [T, kv_heads, dim]."""
        if batch.kept_rows.numel():
            self.keys[layer].index_copy_(0, batch.kept_slots, key.index_select(0, batch.kept_rows))
            self.values[layer].index_copy_(0, batch.kept_slots, value.index_select(0, batch.kept_rows))

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at `slots` (any shape [...]): [..., kv_heads, dim] each."""
        return self.keys[layer][slots], self.values[layer][slots]
