"""All layers of a decoder in one call, where every product is on matrix tiles.

Nothing of Python's is between two loops then, and other threads have the interpreter for as long as a step takes.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from orthrus_backend.attention.paged import PagedStep
from orthrus_backend.fused.adapted import AdapterPacker, Stretches
from orthrus_backend.fused.layer import Layer
from orthrus_backend.native.compiled import load_kernels
from orthrus_backend.native.products import TileProduct, Weights

_P, _L, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Layer(ctypes.Structure):
    """As in `decoder.h`, as is the next."""

    _fields_ = (
        *((name, _P) for name in ("before_attention", "query_norm", "key_norm", "before_mlp")),
        *((name, Weights) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _P) for name in ("key_cache", "value_cache")),
        ("window", _L),
        *((name, _F) for name in ("scale", "softcap")),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *(("layers", _P), ("count", _L)),
        *(("adapters", _P), ("adapter_count", _L)),
        *((name, _P) for name in ("last_norm", "cosine", "sine", "slots", "items")),
        *(("item_count", _L), ("blocks", _P)),
        *((name, _L) for name in ("block_size", "rows", "width", "heads", "kv_heads", "dim")),
        *(("epsilon", _F), ("threads", ctypes.c_int)),
    )


class AllLayers:
    """What `FusedDecoder` does product by product, to the bit for rows without adapters.

    What an adapter adds is summed with the product before that is rounded, so that rows with one differ in rounding.
    """

    @classmethod
    def of(
        cls, layers: Sequence[Layer], last_norm: Tensor, heads: tuple[int, int], epsilon: float
    ) -> "AllLayers | None":
        """None where a product is not on tiles. `heads`: of queries, and of keys."""
        products = [[matrix.tiles for matrix in layer.matrices] for layer in layers]
        on_tiles = [[product for product in row if product is not None] for row in products]
        return cls(layers, on_tiles, last_norm, heads, epsilon) if on_tiles == products else None

    def __init__(
        self,
        layers: Sequence[Layer],
        products: Sequence[Sequence[TileProduct]],
        last_norm: Tensor,
        heads: tuple[int, int],
        epsilon: float,
    ) -> None:
        self._kept = (layers, products, last_norm)  # the structures only know where they are
        self._layers = (_Layer * len(layers))(*map(_structure, layers, products))
        self._last_norm, self._heads, self._epsilon = last_norm, heads, epsilon
        self._adapters = AdapterPacker(layers)
        self._decode = load_kernels().orthrus_decode
        self._decode.argtypes, self._decode.restype = (_P, _P, _P), None

    def __call__(
        self, hidden: Tensor, cosine: Tensor, sine: Tensor, step: PagedStep, adapted: Stretches = ()
    ) -> Tensor:
        """`hidden`: [T, d], changed; `cosine`, `sine`: [T, dim / 2] float32; returns [T, d], after the last norm."""
        rows, width = hidden.shape
        assert hidden.dtype is torch.bfloat16
        assert cosine.dtype == sine.dtype == torch.float32
        assert all(tensor.is_contiguous() for tensor in (hidden, cosine, sine, step.slots))
        assert len(step.slots) == len(cosine) == len(sine) == rows
        for layer, keys, values in zip(self._layers, step.cache.keys, step.cache.values, strict=True):
            layer.key_cache, layer.value_cache = keys.data_ptr(), values.data_ptr()
        adapters = self._adapters(adapted)
        out = torch.empty_like(hidden)
        arguments = _Step(
            layers=ctypes.addressof(self._layers),
            count=len(self._layers),
            adapters=adapters.address,
            adapter_count=adapters.count,
            last_norm=self._last_norm.data_ptr(),
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            slots=step.slots.data_ptr(),
            items=step.items.data_ptr(),
            item_count=len(step.items),
            blocks=step.blocks.data_ptr(),
            block_size=step.cache.block_size,
            rows=rows,
            width=width,
            heads=self._heads[0],
            kv_heads=self._heads[1],
            dim=2 * cosine.shape[1],
            epsilon=self._epsilon,
            threads=torch.get_num_threads(),
        )
        self._decode(ctypes.byref(arguments), hidden.data_ptr(), out.data_ptr())
        return out


def _structure(layer: Layer, products: Sequence[TileProduct]) -> _Layer:
    norms = (layer.before_attention, layer.query_norm, layer.key_norm, layer.before_mlp)
    spec = layer.spec
    return _Layer(
        *(None if norm is None else norm.data_ptr() for norm in norms),
        *(product.weights for product in products),
        window=spec.window or 0,
        scale=spec.scale,
        softcap=spec.softcap or 0.0,
    )
