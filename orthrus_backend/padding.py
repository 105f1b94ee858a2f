"""Sizes that the rows of a step are filled up to on a CPU, so that few different ones occur.

oneDNN compiles a program for every shape of a product, some milliseconds and up to two megabytes each, and keeps a
thousand of them: more than a gigabyte, and time in every step, if steps come in all sizes.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

_FINE = 16  # up to here sizes double; from here on they are multiples of this ...
_COARSE = 32  # ... and of this from twice as many on


def padded(rows: int) -> int:
    """The next size that is used: less than twice `rows`, and less than `rows` + 32 where there are many."""
    if rows <= _FINE:
        return 1 << (rows - 1).bit_length()
    step = _FINE if rows <= 2 * _COARSE else _COARSE
    return -(-rows // step) * step


def fill_up(x: Tensor, device: torch.device) -> Tensor:
    """Rows of zeros behind those of `x` [n, ...], as many as are needed on this device."""
    missing = padded(len(x)) - len(x) if device.type == "cpu" else 0
    return pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) if missing else x
