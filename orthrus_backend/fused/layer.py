"""One layer of a Llama-like decoder, from the weights of Hugging Face's modules."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.fused.matrix import Matrix


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights; names are those of Hugging Face's modules, by which adapters know them."""

    before_attention: Tensor  # [d], as are all weights of norms
    qkv: Matrix
    query_norm: Tensor | None  # [dim]
    key_norm: Tensor | None
    output: Matrix
    before_mlp: Tensor
    gate_up: Matrix
    down: Matrix
    spec: AttentionSpec
    names: tuple[tuple[str, ...], ...]  # of the layers in qkv, output, gate_up and down

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """All four, in the order of `names`."""
        return self.qkv, self.output, self.gate_up, self.down


def read_layer(layer: Any, name: str, spec: AttentionSpec) -> Layer:
    """`layer`: a transformers module; `name`: its name with a dot behind; `spec`: of its attention."""
    attention = layer.self_attn
    groups = (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.o_proj",),
        ("mlp.gate_proj", "mlp.up_proj"),
        ("mlp.down_proj",),
    )
    qkv, output, gate_up, down = (
        Matrix([layer.get_submodule(part) for part in group], gates=group[0] == "mlp.gate_proj") for group in groups
    )
    return Layer(
        before_attention=layer.input_layernorm.weight,
        qkv=qkv,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        output=output,
        before_mlp=layer.post_attention_layernorm.weight,
        gate_up=gate_up,
        down=down,
        spec=spec,
        names=tuple(tuple(name + part for part in group) for group in groups),
    )
