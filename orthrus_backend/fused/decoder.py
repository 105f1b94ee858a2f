"""The decoder that Llama, Mistral, Qwen2 and Qwen3 share, from the weights of Hugging Face's modules.

Responsible for hidden states; what family a model is of, and that the result is the same, others check.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from orthrus_backend.adapters import AdapterRows
from orthrus_backend.attention.backend import StepAttention
from orthrus_backend.attention.paged import PagedStep
from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.fused.at_once import AllLayers
from orthrus_backend.fused.layer import Layer, read_layer
from orthrus_backend.fused.matrix import Matrix
from orthrus_backend.native.ops import DTYPES, Kernels
from orthrus_backend.padding import fill_up

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def can_be_fused(model: Any) -> bool:
    """Whether `FusedDecoder` is this model: a transformers causal language model or its base."""
    config = model.config.get_text_config()
    heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        model.dtype in DTYPES
        and config.model_type in _FAMILIES
        and config.hidden_act == "silu"
        and 2 * len(model.base_model.rotary_emb.inv_freq) == heads  # all of a head turns
    )


class FusedDecoder:
    """Token ids to hidden states after the final norm."""

    def __init__(self, model: Any, specs: Sequence[AttentionSpec], kernels: Kernels, adapters: AdapterRows) -> None:
        """`specs`: of each layer's attention."""
        base = model.base_model
        config = model.config.get_text_config()
        prefix = "" if base is model else f"{model.base_model_prefix}."
        self._kernels = kernels
        self._adapters = adapters
        self._embedding = base.embed_tokens.weight  # [vocabulary, d]
        self._rotary = base.rotary_emb
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._epsilon: float = config.rms_norm_eps
        self._layers = [
            read_layer(layer, f"{prefix}layers.{i}.", spec)
            for i, (layer, spec) in enumerate(zip(base.layers, specs, strict=True))
        ]
        self._last_norm = base.norm.weight
        heads = (self._heads, self._kv_heads)
        self._at_once = AllLayers.of(self._layers, self._last_norm, heads, self._epsilon) if kernels.tiles else None

    def take_over(self) -> None:
        """Let the modules that it was made of share its memory."""
        for layer in self._layers:
            for matrix in layer.matrices:
                matrix.take_over()

    def __call__(self, input_ids: Tensor, positions: Tensor, step: StepAttention) -> Tensor:
        """`input_ids`, `positions`: [T]; returns [T, d]."""
        rows = len(input_ids)
        if self._at_once is None:
            input_ids, positions = fill_up(input_ids, input_ids.device), fill_up(positions, input_ids.device)
        hidden = embedding(input_ids, self._embedding)  # [T, d]: what layers add to
        exact = torch.empty(0, device=hidden.device)  # angles come in its dtype
        cosine, sine = (both[0].chunk(2, -1)[0].contiguous() for both in self._rotary(exact, positions[None]))
        if self._at_once is not None and isinstance(step, PagedStep):
            return self._at_once(hidden, cosine, sine, step, self._adapters.segments)
        added: Tensor | None = None
        for index, layer in enumerate(self._layers):
            x = self._kernels.normalise(hidden, added, layer.before_attention, self._epsilon)
            added = self._attend(index, layer, x, cosine, sine, step)  # [T, d]
            x = self._kernels.normalise(hidden, added, layer.before_mlp, self._epsilon)
            x = self._gate(layer, x)  # [T, m]
            added = self._multiply(layer.down, x, layer.names[3])  # [T, d]
        return self._kernels.normalise(hidden, added, self._last_norm, self._epsilon)[:rows]

    def _attend(self, index: int, layer: Layer, x: Tensor, cosine: Tensor, sine: Tensor, step: StepAttention) -> Tensor:
        heads, kv_heads = self._heads, self._kv_heads
        qkv = self._multiply(layer.qkv, x, layer.names[0])  # [T, (heads + 2 kv_heads) dim]
        self._kernels.rotate(qkv, heads, kv_heads, cosine, sine, layer.query_norm, layer.key_norm, self._epsilon)
        rows = qkv.view(len(qkv), heads + 2 * kv_heads, -1)
        query, key, value = rows.split((heads, kv_heads, kv_heads), dim=1)
        seen = step.attend(index, query, key, value, layer.spec)  # [T, heads, dim]
        return self._multiply(layer.output, seen.flatten(1), layer.names[1])

    def _gate(self, layer: Layer, x: Tensor) -> Tensor:
        if not self._adapters and (gated := layer.gate_up.gated(x)) is not None:
            return gated
        return self._kernels.gate(self._multiply(layer.gate_up, x, layer.names[2]))

    def _multiply(self, matrix: Matrix, x: Tensor, names: Sequence[str]) -> Tensor:
        y = matrix(x)
        if self._adapters:
            for name, columns in zip(names, y.split(matrix.widths, dim=1), strict=True):
                self._adapters.add(name, x, columns)
        return y
