"""The backbone: any Hugging Face decoder or encoder, unmodified, run on packed rows.

Responsible for loading weights safely, for hidden states and logits. Knows nothing of requests, blocks or pooling.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GgufConfig, PretrainedConfig

from orthrus_backend.attention import hook
from orthrus_backend.attention.backend import StepAttention
from orthrus_backend.attention.probe import ProbeStep
from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.config import ModelSettings
from orthrus_backend.kv_cache import LayerShape
from orthrus_backend.padding import fill_up

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class HiddenStates(Protocol):
    """Another way to compute a model's hidden states."""

    def __call__(self, input_ids: Tensor, positions: Tensor, step: StepAttention) -> Tensor:
        """`input_ids`, `positions`: [T]; returns [T, d], after the final norm."""


class Backbone:
    """Packed tokens to hidden states; with a language model's head, hidden states to logits."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model  # a transformers causal language model; their own types do not describe its parts
        self.config: PretrainedConfig = self.model.config.get_text_config()
        self.device = device
        self.dtype: torch.dtype = self.model.dtype
        self.fused: HiddenStates | None = None  # computes hidden states instead of the model's own code
        self.project: Callable[[Tensor], Tensor] | None = None  # is the output matrix, instead of the model's own code
        self._first_position = _first_position(self.config)
        # positions that the model knows, less those that it skips
        self.limit = int(getattr(self.config, "max_position_embeddings", 0) or 2**31 - 1) - self._first_position
        _refuse_what_cannot_be_exact(self.config)

    @property
    def generates(self) -> bool:
        """Whether it has a language model's head."""
        return self.model.get_output_embeddings() is not None

    @torch.inference_mode()
    def hidden(self, input_ids: Tensor, positions: Tensor, step: StepAttention) -> Tensor:
        """Last hidden states after the final norm. `input_ids`, `positions`: [T]; returns [T, d]."""
        rows = len(input_ids)
        positions = positions + self._first_position
        if self.fused is not None:
            return self.fused(input_ids, positions, step)
        input_ids = fill_up(input_ids, self.device)
        positions = fill_up(positions, self.device)
        keywords = {"input_ids": input_ids[None], "position_ids": positions[None], "use_cache": False, hook.NAME: step}
        output = self.model.base_model(**keywords)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden[:rows]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token. `hidden`: [R, d]; returns [R, vocabulary], in the model's dtype.

        Besides the output matrix some families scale (Cohere, Granite) or cap (Gemma) their logits.
        """
        if self.project is not None:
            logits = self.project(hidden)
        else:
            logits = self.model.get_output_embeddings()(fill_up(hidden, self.device))[: len(hidden)]
        if factor := getattr(self.config, "logit_scale", None):
            logits = logits * factor
        if divisor := getattr(self.config, "logits_scaling", None):
            logits = logits / divisor
        if cap := getattr(self.config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def layer_shapes(self) -> list[LayerShape]:
        """What each layer stores per token, found by running one token; empty for an encoder.

        Raises:
            ValueError: some layer does not attend in a way that can be served.
        """
        return self._probe().shapes(self.config.num_hidden_layers)

    def layer_specs(self) -> list[AttentionSpec]:
        """What each layer asks of attention, found in the same way."""
        return self._probe().specs()

    def _probe(self) -> ProbeStep:
        probe = ProbeStep()
        zero = torch.zeros(1, dtype=torch.long, device=self.device)
        self.hidden(zero, zero, probe)
        return probe


def resolve_device(name: str) -> torch.device:
    """`auto` takes the GPU where there is one.

    Raises:
        ValueError: a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name.startswith("cuda") and not available:
        raise ValueError(f"device {name!r} was asked for, but PyTorch sees no GPU")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the processor multiplies it natively, else float32."""
    if name != "auto":
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def load_backbone(location: str, settings: ModelSettings, head: bool = True) -> Backbone:
    """Load a Hugging Face folder, a GGUF file or a hub id; safetensors and GGUF only, never code from the model.

    With `head` it is a causal language model; without, only what makes hidden states, of a decoder or an encoder.

    Raises:
        ValueError: the model cannot be loaded or cannot be served exactly; the message says why.
    """
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    if dtype is torch.float32:
        torch.set_float32_matmul_precision("highest")  # some containers start with TF32, which is something else
    hook.register()
    _refuse_pickles(Path(location))
    source = pretrained_source(location)
    # plain matrices in every case: packed ones would compute in a number format of their own, and take no adapter
    unpacked: dict[str, Any] = {"quantization_config": GgufConfig(dequantize=True)} if "gguf_file" in source else {}
    try:
        config = AutoConfig.from_pretrained(**source, trust_remote_code=False)
        _refuse_what_cannot_be_exact(config.get_text_config())
        loaded: Any = (AutoModelForCausalLM if head else AutoModel).from_pretrained(
            **source,
            **unpacked,
            dtype=dtype,
            attn_implementation=hook.NAME,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ValueError(f"model {location!r} cannot be loaded: {error}") from error
    model, report = loaded
    missing = sorted(key for key in report["missing_keys"] if not (key.startswith("pooler.") and not head))
    if missing:  # an encoder's own pooler is not used: pooling is what the request and the recipe say
        raise ValueError(f"model {location!r} lacks weights: {', '.join(missing[:5])}")
    if model.config._attn_implementation != hook.NAME:
        raise ValueError(f"model {location!r} does not let its attention be replaced; it cannot be served")
    return Backbone(model.eval().requires_grad_(False).to(device), device)


def pretrained_source(location: str) -> dict[str, str]:
    """The arguments of ``from_pretrained`` that name a model, for models and tokenizers alike."""
    path = Path(location)
    if path.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": location}


def _refuse_pickles(path: Path) -> None:
    """Refuse a folder whose only weights are pickles, which could run code while they are read."""
    if path.is_dir() and not any(path.glob("*.safetensors")):
        for pickled in sorted(file for file in path.iterdir() if file.suffix in _PICKLES):
            raise ValueError(f"{pickled} is a pickle and is not loaded; save the model as safetensors")


def _refuse_what_cannot_be_exact(config: PretrainedConfig) -> None:
    """Refuse families whose result for one request depends on its neighbours or that keep no keys and values."""
    family = config.model_type
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        kind = parameters.get("rope_type", parameters.get("type"))
        if kind in ("dynamic", "longrope"):
            raise ValueError(
                f"{family} with {kind!r} position embedding cannot be served: "
                "its angles depend on the longest sequence of the whole batch"
            )
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(f"{family} has layers of type {', '.join(sorted(unknown))}; only softmax attention is served")
    if getattr(config, "kv_lora_rank", None):
        raise ValueError(f"{family} uses multi-head latent attention, which cannot be served")
    if config.is_encoder_decoder:
        raise ValueError(f"{family} is an encoder-decoder; only decoders and encoders are served")


def _first_position(config: PretrainedConfig) -> int:
    """The position id of a text's first token: RoBERTa and its kin count from behind the padding id."""
    if config.model_type in ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text"):
        return int(config.pad_token_id) + 1
    return 0
