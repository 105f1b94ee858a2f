"""The compiled kernels as functions of tensors: shapes and types are checked here, memory is only passed on."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from orthrus_backend.native.compiled import load_kernels

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
LARGEST_GROUP = 64  # query heads for one head of keys

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
_SIGNATURES: dict[str, tuple[type[Any], ...]] = {
    "attend": (_P, _P, _L, _P, _L, _P, _L, _P, _P, _P, _L, _P, _I, _I, _I, _I, _I, _F, _F, _I, _I),
    "normalise": (_P, _P, _P, _P, _L, _L, _F, _I),
    "gate": (_P, _P, _L, _L, _I),
    "rotate": (_P, _L, _I, _I, _I, _P, _P, _P, _P, _F, _I),
    "keep": (_P, _L, _P, _L, _P, _P, _P, _L, _L),
    "largest": (_P, _P, _L, _L, _L, _I),
}


class Kernels:
    """The kernels for one dtype. Tensors are on the CPU, and dense in their last dimension."""

    def __init__(self, dtype: torch.dtype, tiles: bool = True) -> None:
        """Raises `NotCompiledError` where there are none.

        Args:
            dtype: a key of `DTYPES`.
            tiles: use the processor's matrix tiles (Intel AMX) where it has them, for bfloat16.
        """
        library = load_kernels()
        self.tiles = tiles and dtype is torch.bfloat16 and bool(library.orthrus_tiles())
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"orthrus_{name}_{DTYPES[dtype]}")
            function.argtypes = arguments
            function.restype = _I if name == "attend" else None
            self._functions[name] = function

    def attend(
        self,
        query: Tensor,  # [T, heads, dim]
        key: Tensor,  # [T, kv_heads, dim]
        value: Tensor,  # [T, kv_heads, dim]
        key_cache: Tensor,  # [slots, kv_heads, dim]
        value_cache: Tensor,  # [slots, kv_heads, dim]
        items: Tensor,  # [n, 4] int64: first row, rows, position of the first, where its blocks begin (-1: none kept)
        blocks: Tensor,  # [m] int32
        block_size: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Causal attention of every item's rows over its own keys, which are kept already. [T, heads, dim]."""
        rows, heads, dim = query.shape
        kv_heads = key.shape[1]
        assert key.shape[2] == value.shape[2] == dim
        assert dim in HEAD_DIMS
        assert heads <= kv_heads * LARGEST_GROUP
        assert all(t.stride()[1:] == (dim, 1) for t in (query, key, value))
        out = query.new_empty(rows, heads, dim)
        failed = self._functions["attend"](
            out.data_ptr(),
            *(number for t in (query, key, value) for number in (t.data_ptr(), t.stride(0))),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            items.data_ptr(),
            len(items),
            blocks.data_ptr(),
            block_size,
            heads,
            kv_heads,
            dim,
            window or 0,
            scale,
            softcap or 0.0,
            self.tiles,
            torch.get_num_threads(),
        )
        assert not failed
        return out

    def normalise(self, residual: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        """RMS norm of `residual + added`, which `residual` becomes. [T, d] each, `weight` [d]; returns [T, d]."""
        assert residual.is_contiguous()
        assert added is None or added.is_contiguous()
        out = torch.empty_like(residual)
        self._functions["normalise"](
            out.data_ptr(),
            residual.data_ptr(),
            None if added is None else added.data_ptr(),
            weight.data_ptr(),
            *residual.shape,
            epsilon,
            torch.get_num_threads(),
        )
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` of rows that hold both: [T, 2 m] to [T, m]."""
        assert gate_up.is_contiguous()
        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self._functions["gate"](out.data_ptr(), gate_up.data_ptr(), *out.shape, torch.get_num_threads())
        return out

    def rotate(
        self,
        qkv: Tensor,  # [T, (heads + 2 kv_heads) dim], changed in place
        heads: int,
        kv_heads: int,
        cosine: Tensor,  # [T, dim / 2] float32
        sine: Tensor,  # [T, dim / 2] float32
        query_weight: Tensor | None,  # [dim]: queries are RMS-normalised first
        key_weight: Tensor | None,  # [dim]
        epsilon: float,
    ) -> None:
        """Rotary position embedding (Su et al., 2021; of halves, as Llama's) of queries and keys."""
        assert all(tensor.is_contiguous() for tensor in (qkv, cosine, sine))
        assert cosine.dtype == sine.dtype == torch.float32
        dim = qkv.shape[1] // (heads + 2 * kv_heads)
        self._functions["rotate"](
            qkv.data_ptr(),
            len(qkv),
            heads,
            kv_heads,
            dim,
            cosine.data_ptr(),
            sine.data_ptr(),
            None if query_weight is None else query_weight.data_ptr(),
            None if key_weight is None else key_weight.data_ptr(),
            epsilon,
            torch.get_num_threads(),
        )

    def keep(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        """Copy rows [T, kv_heads, dim] to `slots` [T] int64 of the cache [slots, kv_heads, dim]; -1: nowhere."""
        width = key[0].numel()
        assert all(tensor[0].is_contiguous() for tensor in (key, value))
        assert value[0].numel() == width
        self._functions["keep"](
            key.data_ptr(),
            key.stride(0),
            value.data_ptr(),
            value.stride(0),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            slots.data_ptr(),
            len(slots),
            width,
        )

    def largest(self, scores: Tensor, columns: int) -> Tensor:
        """The first of the largest among the first `columns` of each row; NaN is never it. [R, V] to [R] int64."""
        assert scores.stride(1) == 1
        out = torch.empty(len(scores), dtype=torch.long)
        self._functions["largest"](
            out.data_ptr(), scores.data_ptr(), len(scores), columns, scores.stride(0), torch.get_num_threads()
        )
        return out
