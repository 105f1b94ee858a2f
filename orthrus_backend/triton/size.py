"""How much a Triton request brings, before anything is done with it. Knows no input by name."""

from typing import Any


def request_bytes(request: Any) -> int:
    """Bytes of all inputs and parameters, as they are on the wire: four more than its length for each string."""
    total = len(request.parameters())
    for tensor in request.inputs():
        array = tensor.as_numpy()
        total += sum(map(len, array.flat)) + 4 * array.size if array.dtype.hasobject else array.nbytes
    return total
