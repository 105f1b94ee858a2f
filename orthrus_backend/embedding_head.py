"""What a model does to its pooled vectors: linear layers with activations, normalisation between them.

Computes in float32 whatever the backbone's dtype: a handful of rows, once for each text. Knows nothing of pooling,
requests or files other than weights.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from orthrus_backend.embedding_recipe import Dense, Step

_Layer = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, _Layer] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


class EmbeddingHead:
    """The steps between pooling and the last normalisation; without steps it changes nothing."""

    def __init__(self, steps: Sequence[Step] = (), device: torch.device | None = None) -> None:
        """Load the weights.

        Raises:
            ValueError: a file does not hold what its layer needs; the message names the file and the tensor.
        """
        self._layers = [_dense(step, device) if isinstance(step, Dense) else _normalize for step in steps]

    def __bool__(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._layers)

    def __call__(self, pooled: Tensor) -> Tensor:
        """`pooled`: [n, modes x d] float32; returns [n, D]."""
        for layer in self._layers:
            pooled = layer(pooled)
        return pooled


def _normalize(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


def _dense(step: Dense, device: torch.device | None) -> _Layer:
    try:
        tensors = load_file(step.weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{step.weights} cannot be read: {error}") from error
    shapes = {"linear.weight": [step.out_features, step.in_features]}
    if step.bias:
        shapes["linear.bias"] = [step.out_features]
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != shapes:
        raise ValueError(f"{step.weights} holds {found}; its layer needs {shapes}")
    weight = tensors["linear.weight"].to(device, torch.float32)  # [out, in]
    bias = tensors["linear.bias"].to(device, torch.float32) if step.bias else None  # [out]
    activation = _ACTIVATIONS[step.activation]
    return lambda x: activation(F.linear(x, weight, bias))
