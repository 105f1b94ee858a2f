"""LoRA adapters in the form in which the call for all layers takes them: both factors of each product on matrix tiles.

The layers of one product (query, key and value; gate and up) have one input, so their first factors stand side by side;
the second ones then lie along the diagonal of a weight of the product's own shape.
"""

import ctypes
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from orthrus_backend.adapters import Adapter, Factors
from orthrus_backend.fused.layer import Layer
from orthrus_backend.native.products import DEPTH, TileProduct, Weights

Stretches = Sequence[tuple[Adapter, int, int]]  # (adapter, first row, row after the last)

_P, _L = ctypes.c_void_p, ctypes.c_int64


class _Factors(ctypes.Structure):
    """As in `adapted.h`, as is the next."""

    _fields_ = (("a", Weights), ("b", Weights))


class _AdapterOfStep(ctypes.Structure):
    _fields_ = (("factors", _P), ("rows", _P), ("stretches", _L))


class AdaptersOfStep:
    """What `orthrus_decode` is told of the adapters of one step. `address` is in use while this lives."""

    def __init__(self, packed: Sequence["PackedAdapter"], rows: Sequence[Tensor]) -> None:
        """`rows`: of each adapter [stretches, 2], first rows and rows after the last, ascending."""
        self._kept = (packed, rows)
        told = [_AdapterOfStep(one.address, own.data_ptr(), len(own)) for one, own in zip(packed, rows, strict=True)]
        self._told = (_AdapterOfStep * len(packed))(*told)
        self.address = ctypes.addressof(self._told)
        self.count = len(packed)


class PackedAdapter:
    """An adapter's factors for all products of a decoder. `address` is in use while this lives."""

    def __init__(self, adapter: Adapter, layers: Sequence[Layer]) -> None:
        self._kept: list[TileProduct] = []
        products = [self._pack(adapter, layer, number) for layer in layers for number in range(len(layer.names))]
        self._factors = (_Factors * len(products))(*products)
        self.address = ctypes.addressof(self._factors)

    def _pack(self, adapter: Adapter, layer: Layer, number: int) -> _Factors:
        """Both factors for one of the products of a layer."""
        matrix, factors = layer.matrices[number], [adapter.layers.get(name) for name in layer.names[number]]
        given = [one for one in factors if one is not None]
        if not given:
            return _Factors()
        a, b = _side_by_side(factors, matrix.widths, given[0])
        first, second = TileProduct(a, None, gates=False), TileProduct(b, None, gates=matrix.gates)
        self._kept += (first, second)
        return _Factors(first.weights, second.weights)


class AdapterPacker:
    """Packs adapters when they are first used, and forgets them when nobody else holds them any more."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._packed: WeakKeyDictionary[Adapter, PackedAdapter] = WeakKeyDictionary()

    def __call__(self, stretches: Stretches) -> AdaptersOfStep:
        """The adapters of a step, each once."""
        rows: dict[Adapter, list[tuple[int, int]]] = {}
        for adapter, start, stop in stretches:
            rows.setdefault(adapter, []).append((start, stop))
            if adapter not in self._packed:
                self._packed[adapter] = PackedAdapter(adapter, self._layers)
        packed = [self._packed[adapter] for adapter in rows]
        return AdaptersOfStep(packed, [torch.tensor(sorted(own), dtype=torch.int64) for own in rows.values()])


def _side_by_side(factors: Sequence[Factors | None], widths: Sequence[int], like: Factors) -> tuple[Tensor, Tensor]:
    """A [R, in] and B [sum of widths, R] of layers with one input; R is the sum of ranks, filled up with zeros."""
    ranks = sum(len(one.a) for one in factors if one is not None)
    whole = -(-ranks // DEPTH) * DEPTH
    a = like.a.new_zeros(whole, like.a.shape[1])
    b = like.b.new_zeros(sum(widths), whole)
    row = column = 0
    for one, width in zip(factors, widths, strict=True):
        if one is not None:
            rank = len(one.a)
            a[row : row + rank] = one.a
            b[column : column + width, row : row + rank] = one.b
            row += rank
        column += width
    return a, b
