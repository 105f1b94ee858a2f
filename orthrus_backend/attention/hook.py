"""The seam into Hugging Face's models: one attention function, registered under a name and asked for at load.

Translates between their calling convention and `StepAttention`; what it cannot honour exactly it refuses.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from orthrus_backend.attention.backend import StepAttention
from orthrus_backend.attention.spec import AttentionSpec

NAME = "orthrus"  # of the attention implementation, and of the keyword that carries the step through the model


def register() -> None:
    """Make the implementation known to transformers; any number of times."""
    AttentionInterface.register(NAME, _attention)


def _attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, T, dim]
    key: Tensor,  # [1, kv_heads, T, dim]
    value: Tensor,  # [1, kv_heads, T, dim]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    step: StepAttention = others[NAME]
    for name in ("s_aux", "position_bias"):
        if others.get(name) is not None:
            raise ValueError(f"this model's attention uses {name}, which is not supported")
    if attention_mask is not None:
        raise ValueError("this model builds its own attention mask, which is not supported")
    causal = others.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    layer = getattr(module, "layer_idx", None)  # encoders, which keep nothing, need not count their layers
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    spec = AttentionSpec(scale, sliding_window, softcap, bool(causal))
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [T, heads, dim] each
    return step.attend(-1 if layer is None else layer, query, key, value, spec).unsqueeze(0), None
