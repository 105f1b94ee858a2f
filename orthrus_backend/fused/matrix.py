"""Products with weights that never change, laid out once for the processor. Knows no layers of a decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from orthrus_backend.native.products import TileProduct, fits_tiles

_WIDEN_FROM = 16  # rows from which bfloat16 on a processor that does not know it is faster by way of float32


class Matrix:
    """Several linear layers over the same input as one: `x W' + b` of all of them, side by side.

    Weights are kept in the order of whoever multiplies: the product on tiles where there are any, else oneDNN where it
    knows the dtype on this processor.
    """

    def __init__(self, layers: Sequence[nn.Linear], gates: bool = False) -> None:
        """`gates`: there are two layers of one width, and the first gates the second."""
        self.widths = [layer.out_features for layer in layers]
        self.gates = gates
        self._layers = layers
        self._weight = torch.cat([layer.weight for layer in layers])  # [sum of widths, in]
        self._bias: Tensor | None = None  # [sum of widths]
        if any(layer.bias is not None for layer in layers):
            zeros = [self._weight.new_zeros(width) for width in self.widths]
            self._bias = torch.cat([zero if x.bias is None else x.bias for x, zero in zip(layers, zeros, strict=True)])
        self.tiles: TileProduct | None = None  # what multiplies, where it is that
        self._packed = False
        if fits_tiles(self._weight):
            self.tiles = TileProduct(self._weight, self._bias, gates)
            self._weight = self._weight.new_empty(0)
        elif _is_packable(self._weight):
            self._packed = True
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, sum of widths]."""
        if self.tiles is not None:
            return self.tiles(x)
        if self._packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return y
        if x.dtype is torch.bfloat16 and len(x) >= _WIDEN_FROM:
            bias = None if self._bias is None else self._bias.float()
            return linear(x.float(), self._weight.float(), bias).bfloat16()
        return linear(x, self._weight, self._bias)

    def gated(self, x: Tensor) -> Tensor | None:
        """silu of the first layer's result, times the second's, without writing either: [T, in] to [T, width].

        None where no product does that; it is otherwise the same as in two steps.
        """
        return None if self.tiles is None else self.tiles.gated(x)

    def take_over(self) -> None:
        """Leave the layers that it was made of no memory of their own, so that there is one copy of the weights.

        They keep names and shapes, and cannot compute any more.
        """
        for layer in self._layers:
            layer.weight = nn.Parameter(layer.weight.to("meta"), requires_grad=False)


def _is_packable(weight: Tensor) -> bool:
    """Whether oneDNN has products of its own for this dtype on this processor."""
    if weight.dtype is torch.bfloat16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return supported
    return weight.dtype is torch.float32 and torch.backends.mkldnn.is_available()
