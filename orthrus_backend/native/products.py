"""Products with weights that never change on the processor's matrix tiles: bfloat16 only, and rows of any number.

Each row's result is the same to the bit whatever the others are, and however many threads there are.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from orthrus_backend.native.compiled import NotCompiledError, load_kernels

_SIDE = 16  # columns of a tile
DEPTH = 32  # numbers of a row that one instruction multiplies

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[type[Any], ...]] = {
    "multiply": (_P, _P, _L, _L, _P, _I),
    "multiply_gated": (_P, _P, _L, _L, _P, _I),
    "project": (_P, _P, _P, _L, _L, _L, _I),
}


def fits_tiles(weight: Tensor) -> bool:
    """Whether `TileProduct` takes this weight on this machine."""
    whole = weight.shape[0] % (2 * _SIDE) == 0 and weight.shape[1] % DEPTH == 0
    return weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and whole and have_tiles()


@cache
def have_tiles() -> bool:
    """Whether processor, operating system and compiler have tiles; the process may use them from then on."""
    try:
        return bool(load_kernels().orthrus_tiles())
    except NotCompiledError:
        return False


def _function(name: str) -> Callable[..., None]:
    function = getattr(load_kernels(), f"orthrus_{name}")
    function.argtypes, function.restype = _SIGNATURES[name], None
    return function


class Weights(ctypes.Structure):
    """A product's weight and bias as the kernels are told of them (`products.h`)."""

    _fields_ = (("weight", _P), ("bias", _P), ("depth", _L), ("pairs", _L), ("step", _L), ("apart", _L))


class TileProduct:
    """`x W' + b`, with `W` in the order in which tiles read it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, gates: bool) -> None:
        """`weight`: [N, K], copied; `bias`: [N]; `gates`: the first half of N are gates of the second half."""
        assert fits_tiles(weight)
        self._multiply, self._multiply_gated = _function("multiply"), _function("multiply_gated")
        self._columns, self._depth = weight.shape
        self._gates = gates
        pairs = self._columns // (2 * _SIDE)
        parts = (pairs, 2, _SIDE, self._depth // DEPTH, DEPTH // 2, 2)
        if gates:  # a gate's tile lies beside that of what it gates
            places = (_SIDE, self._columns // 2)  # columns from pair to pair, and from tile to tile
            tiles = weight.view(2, pairs, *parts[2:]).transpose(0, 1)
        else:
            places = (2 * _SIDE, _SIDE)
            tiles = weight.view(parts)
        self._weight = tiles.permute(0, 3, 1, 4, 2, 5).contiguous()
        self._bias = None if bias is None else bias.contiguous()
        bias_at = None if self._bias is None else self._bias.data_ptr()
        self.weights = Weights(self._weight.data_ptr(), bias_at, self._depth, pairs, *places)  # in use while this lives

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] to [T, N]."""
        return self._run(self._multiply, x, self._columns)

    def gated(self, x: Tensor) -> Tensor:
        """`silu(gate) * up`, [T, K] to [T, N / 2]: to the bit what `Kernels.gate` makes of `__call__`'s result."""
        assert self._gates
        return self._run(self._multiply_gated, x, self._columns // 2)

    def _run(self, multiply: Callable[..., None], x: Tensor, columns: int) -> Tensor:
        assert x.dtype is torch.bfloat16
        assert x.shape[1] == self._depth
        assert x.stride(1) == 1
        out = x.new_empty(len(x), columns)
        weights = ctypes.byref(self.weights)
        multiply(out.data_ptr(), x.data_ptr(), x.stride(0), len(x), weights, torch.get_num_threads())
        return out


class TileProjection:
    """`x W'` for a large `W` that its model keeps as it is, such as a head that is the embedding too."""

    def __init__(self, layer: nn.Linear) -> None:
        assert can_project(layer)
        self._layer = layer
        self._project = _function("project")

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] to [T, N]."""
        weight = self._layer.weight
        assert x.dtype is torch.bfloat16
        assert x.shape[1] == weight.shape[1]
        rows, pairs = len(x), x.shape[1] // 2
        whole = pad(x.contiguous().view(torch.int32), (0, 0, 0, -rows % _SIDE))  # numbers go in twos
        tiles = whole.view(-1, _SIDE, pairs).transpose(1, 2).contiguous()
        out = x.new_empty(rows, len(weight))
        self._project(
            out.data_ptr(),
            tiles.data_ptr(),
            weight.data_ptr(),
            rows,
            x.shape[1],
            len(weight),
            torch.get_num_threads(),
        )
        return out


def can_project(layer: object) -> bool:
    """Whether `TileProjection` is this layer on this machine."""
    if type(layer) is not nn.Linear:
        return False
    bias: Tensor | None = layer.bias
    return bias is None and layer.weight.is_contiguous() and fits_tiles(layer.weight)
