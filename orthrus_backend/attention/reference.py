"""Attention in plain PyTorch operations: for any device, and the twin that faster kernels are tested against."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.batch import Batch, Rows
from orthrus_backend.kv_cache import KVCache


class ReferenceAttention:
    """One call of scaled-dot-product attention for each chunk, and one for all decodes together."""

    block_size = 16

    def begin(self, batch: Batch, cache: KVCache) -> "ReferenceStep":
        return ReferenceStep(batch, cache)


class ReferenceStep:
    """Slots and masks of one step, shared by all layers."""

    def __init__(self, batch: Batch, cache: KVCache) -> None:
        self._batch = batch
        self._cache = cache
        self._device = batch.input_ids.device
        self._chunk_slots = [self._slots(rows) if rows.offset else None for rows in batch.chunks]
        self._masks: dict[int | None, tuple[list[Tensor | None], Tensor]] = {}  # by window
        if batch.decodes:
            longest = max(rows.context for rows in batch.decodes)
            self._contexts = torch.tensor([rows.context for rows in batch.decodes], device=self._device)  # [n]
            self._decode_slots = self._padded_slots(batch.decodes, longest)  # [n, longest]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        if not spec.causal:
            return self._attend_whole(query, key, value, spec)
        self._cache.write(layer, self._batch, key, value)
        chunk_masks, decode_mask = self._masks_for(spec.window)
        out = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])  # [T, heads, value_dim]
        for rows, slots, mask in zip(self._batch.chunks, self._chunk_slots, chunk_masks, strict=True):
            span = slice(rows.start, rows.stop)
            keys, values = (key[span], value[span]) if slots is None else self._cache.read(layer, slots)
            out[span] = _attend(query[None, span], keys[None], values[None], mask, spec)[0]
        if self._batch.decodes:
            first, last = self._batch.decodes[0].start, self._batch.decodes[-1].stop
            keys, values = self._cache.read(layer, self._decode_slots)  # [n, longest, kv_heads, dim]
            out[first:last] = _attend(query[first:last, None], keys, values, decode_mask, spec)[:, 0]
        return out

    def _attend_whole(self, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """Every row sees all rows of its sequence, which is whole in the batch and keeps nothing."""
        assert not self._batch.decodes
        out = query.new_zeros(query.shape[0], query.shape[1], value.shape[2])  # [T, heads, value_dim]
        for rows in self._batch.chunks:
            assert not rows.offset, "a sequence that sees itself whole was cut"
            span = slice(rows.start, rows.stop)
            mask = self._whole_mask(rows.context, spec.window)
            out[span] = _attend(query[None, span], key[None, span], value[None, span], mask, spec)[0]
        return out

    def _whole_mask(self, length: int, window: int | None) -> Tensor:
        """True where a key is seen: [length, length]."""
        if window is None:
            return torch.ones(length, length, dtype=torch.bool, device=self._device)
        positions = torch.arange(length, device=self._device)
        return (positions[:, None] - positions).abs() < window

    def _slots(self, rows: Rows) -> Tensor:
        """Slots of all keys of a request up to this slice's end: [context]."""
        size = self._cache.block_size
        blocks = torch.tensor(rows.blocks, device=self._device)
        return (blocks[:, None] * size + torch.arange(size, device=self._device)).flatten()[: rows.context]

    def _padded_slots(self, decodes: tuple[Rows, ...], longest: int) -> Tensor:
        size = self._cache.block_size
        width = -(-longest // size)
        tables = torch.tensor([(*rows.blocks, *[0] * width)[:width] for rows in decodes], device=self._device)
        slots = tables[:, :, None] * size + torch.arange(size, device=self._device)  # [n, width, size]
        return slots.flatten(1)[:, :longest]

    def _masks_for(self, window: int | None) -> tuple[list[Tensor | None], Tensor]:
        """True where a key is seen: [length, context] of a chunk (None: plainly causal), [n, 1, longest] of decodes."""
        if window not in self._masks:
            chunks = [self._chunk_mask(rows, window) for rows in self._batch.chunks]
            decodes = torch.empty(0)
            if self._batch.decodes:
                keys = torch.arange(self._decode_slots.shape[1], device=self._device)
                seen = keys < self._contexts[:, None]
                if window is not None:
                    seen &= keys >= self._contexts[:, None] - window
                decodes = seen[:, None]
            self._masks[window] = (chunks, decodes)
        return self._masks[window]

    def _chunk_mask(self, rows: Rows, window: int | None) -> Tensor | None:
        if rows.offset == 0 and (window is None or rows.context <= window):
            return None
        keys = torch.arange(rows.context, device=self._device)
        queries = torch.arange(rows.offset, rows.context, device=self._device)[:, None]
        seen = keys <= queries
        return seen if window is None else seen & (keys > queries - window)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Attention of `[b, n, heads, dim]` over `[b, m, kv_heads, dim]`; `mask` [n, m] or [b, n, m]; None: causal."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    if mask is not None and mask.dim() == 3:
        mask = mask[:, None]  # [b, 1, n, m]: the same for all heads
    if spec.softcap is not None:
        out = _softcapped(query, key, value, mask, spec.scale, spec.softcap)
    elif mask is None:
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=spec.scale, enable_gqa=True)
    else:
        out = _grouped(query, key, value, mask, spec.scale)
    return out.transpose(1, 2)


def _grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Heads of keys that several query heads share, under a mask. Shapes [b, heads, n, dim]; one of b and n is 1.

    PyTorch's fast kernels for GPUs take a mask or shared keys. Given both, it would repeat all keys in float32, which
    for many decodes is more memory than there is. So a group of query heads becomes rows, or a dimension of the batch.
    """
    kv_heads = key.shape[1]
    if query.shape[2] == 1:
        rows = query.reshape(len(query), kv_heads, -1, query.shape[-1])  # [b, kv_heads, group, dim]
        out = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale)
        return out.flatten(1, 2)[:, :, None]
    heads = query[0].unflatten(0, (kv_heads, -1))  # [kv_heads, group, n, dim]
    key, value = (tensor[0, :, None].expand(-1, heads.shape[1], -1, -1) for tensor in (key, value))
    return scaled_dot_product_attention(heads, key, value, attn_mask=mask, scale=scale).flatten(0, 1)[None]


def _softcapped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, cap: float) -> Tensor:
    """Scores as in Gemma 2: ``cap * tanh(score / cap)`` before the mask. Shapes [b, heads, n, dim]."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    scores = cap * torch.tanh(query @ key.transpose(2, 3) * scale / cap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32)
    return weights.to(value.dtype) @ value
