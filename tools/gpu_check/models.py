"""Random models in the shapes of well-known ones, made on the device itself, and random LoRA adapters for them.

Responsible for weights and for preparing a model as the engine does when it loads one. Nothing is downloaded, and
nothing is written to a disk. Knows nothing of requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers import models as families
from transformers.pytorch_utils import Conv1D

from orthrus_backend.acceleration import Computation, accelerate
from orthrus_backend.adapters import Adapter, Factors
from orthrus_backend.attention import hook
from orthrus_backend.kv_cache import LayerShape
from orthrus_backend.model import Backbone
from orthrus_backend.self_check import self_check

_TINY: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_WIDE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
_SHAPES: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "smollm2-135m": (  # the default model
        families.LlamaConfig,
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        },
    ),
    "mistral-7b": (  # version 0.1
        families.MistralConfig,
        {
            **_WIDE,
            "vocab_size": 32000,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "qwen2-7b": (
        families.Qwen2Config,
        {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "llama-3.1-8b": (
        families.LlamaConfig,
        {
            **_WIDE,
            "vocab_size": 128256,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
}
NAMES = tuple(_SHAPES)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model and the way that the engine has chosen to compute it. `fault`: why the engine would not serve it."""

    backbone: Backbone
    computation: Computation
    shapes: list[LayerShape]
    fault: str


def config_of(name: str, tiny: bool) -> PretrainedConfig:
    """One of `NAMES`; `tiny` is the same family with two narrow layers."""
    family, sizes = _SHAPES[name]
    return family(**sizes | (_TINY if tiny else {}))


def build(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """A transformers model with random weights, made where it will be."""
    hook.register()
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=hook.NAME, dtype=dtype)
    return model.eval().requires_grad_(False)


def prepare(backbone: Backbone) -> Prepared:
    """What `orthrus_backend.assembly.load_model` does with a loaded model; a failed self-check is only noted."""
    shapes = backbone.layer_shapes()
    computation = accelerate(backbone, shapes)
    fault = ""
    try:
        self_check(backbone, computation.attention, shapes)
    except ValueError as error:
        fault = str(error)
    if computation.fused:
        computation.fused.take_over()
    return Prepared(backbone, computation, shapes, fault)


def linear_layers(model: Any) -> Mapping[str, tuple[int, int]]:
    """Input and output features of a decoder's linear layers, those that adapters are for, by their names."""
    head = model.get_output_embeddings()
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            found[name] = module.in_features, module.out_features
        elif isinstance(module, Conv1D):
            found[name] = module.weight.shape[0], module.weight.shape[1]
    return found


def make_adapter(name: str, backbone: Backbone, rank: int, strength: float = 0.1) -> Adapter:
    """A LoRA adapter on all linear layers. `strength`: how large what it adds is beside an input of the same size."""
    generator = torch.Generator(backbone.device).manual_seed(rank)

    def draw(rows: int, columns: int, scale: float) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator, device=backbone.device)
        return (drawn * scale).to(backbone.dtype)

    layers = {
        layer: Factors(draw(rank, width_in, width_in**-0.5), draw(width_out, rank, strength * rank**-0.5))
        for layer, (width_in, width_out) in linear_layers(backbone.model).items()
    }
    return Adapter(name, layers)
