"""Reads PEFT's `adapter_config.json` for LoRA. Every field is honoured, harmless for a reason, or refused by its name.

The meaning of names and patterns is PEFT's (`check_target_module_exists` and `get_pattern_key` of peft 0.21). Knows
nothing of tensors or models.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from orthrus_backend.validation import one_line, shown

T = TypeVar("T")

CONFIG_FILE = "adapter_config.json"
ALL_LINEAR = "all-linear"

HARMLESS = {
    "auto_mapping": "tells PEFT which class to load the base model with",
    "base_model_name_or_path": "a note; what must fit are the shapes",
    "corda_config": "only for initialisation, which is refused where it changes the base",
    "ensure_weight_tying": "about embeddings and saved modules, which are refused",
    "eva_config": "only for initialisation",
    "fan_in_fan_out": "layout of the base weight when merging; A and B are stored the same way",
    "inference_mode": "training or not",
    "lora_dropout": "training only",
    "loftq_config": "only for initialisation, which is refused where it changes the base",
    "lora_ga_config": "only for initialisation, which is refused where it changes the base",
    "megatron_core": "has a meaning only with megatron_config",
    "peft_version": "a note",
    "qalora_group_size": "has a meaning only with use_qalora",
    "revision": "of the base model, a note",
    "runtime_config": "how PEFT itself runs",
    "task_type": "which head PEFT wraps; extra heads are refused as modules_to_save",
}
REFUSED = {
    "alora_invocation_tokens": "the adapter would have to begin in the middle of a prompt",
    "layer_replication": "the base model would have to change",
    "lora_bias": "biases of LoRA layers are not applied",
    "megatron_config": "Megatron layers are not served",
    "modules_to_save": "whole modules would have to be replaced",
    "target_parameters": "bare parameters are not adapted",
    "trainable_token_indices": "embeddings would have to change",
    "use_dora": "weight-decomposed adapters need the norms of merged weights",
    "use_qalora": "group-wise pooled inputs are not applied",
}
INITIALISATIONS_THAT_KEEP_THE_BASE = ("gaussian", "eva", "orthogonal")


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{shown(value)} is not a regular expression: {error}") from error
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
Names = Pattern | tuple[str, ...]  # one regular expression for the whole name, or names and their endings
Finite = Annotated[float, Field(allow_inf_nan=False)]


class AdapterConfig(BaseModel):
    """What a LoRA adapter changes, and how strongly. Module names are those of the model it was saved from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    peft_type: Literal["LORA"]
    r: int = Field(8, ge=1)
    lora_alpha: Finite = 8
    use_rslora: bool = False
    rank_pattern: dict[Pattern, Annotated[int, Field(ge=1)]] = {}
    alpha_pattern: dict[Pattern, Finite] = {}
    target_modules: Names
    exclude_modules: Names | None = None
    layers_to_transform: int | tuple[int, ...] | None = None
    layers_pattern: Pattern | tuple[Pattern, ...] | None = None
    bias: Literal["none"] = "none"
    init_lora_weights: bool | str = True

    @classmethod
    def read(cls, folder: Path) -> "AdapterConfig":
        """Read `adapter_config.json`.

        Raises:
            ValueError: no such file, not JSON, or a field that cannot be honoured; the message names it.
        """
        path = folder / CONFIG_FILE
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from error
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ValueError(f"{path}: {one_line(error)}") from error

    @model_validator(mode="before")
    @classmethod
    def _sort_out(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        # PEFT writes every field it knows, newer versions more than we do: one that is off asks for nothing
        asking = {name: value for name, value in fields.items() if value not in (None, False, "", [], {})}
        honoured = {name: value for name, value in fields.items() if name in cls.model_fields and value is not None}
        for name, value in asking.items():
            if name in honoured or name in HARMLESS:
                continue
            reason = REFUSED.get(name, "this field is not known")
            raise ValueError(f"{name} = {shown(value)} is not supported: {reason}")
        return honoured

    @field_validator("init_lora_weights")
    @classmethod
    def _base_untouched(cls, value: bool | str) -> bool | str:
        if isinstance(value, str) and value.lower() not in INITIALISATIONS_THAT_KEEP_THE_BASE:
            raise ValueError(f"{shown(value)} is not supported: it starts from a changed base model")
        return value

    @property
    def all_linear(self) -> bool:
        """Whether every linear layer is adapted, apart from the output head."""
        return isinstance(self.target_modules, str) and self.target_modules.lower() == ALL_LINEAR

    def selects(self, module: str) -> bool:
        """Whether a module of this name is adapted; with `all_linear` only linear layers are meant."""
        if self.exclude_modules and _named(module, self.exclude_modules):
            return False
        if isinstance(self.target_modules, str):
            return self.all_linear or _named(module, self.target_modules)
        return _named(module, self.target_modules) and self._in_chosen_layer(module)

    def rank(self, module: str) -> int:
        """The rank of a module's two factors."""
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """What the product of a module's two factors is multiplied by (rsLoRA: arXiv:2312.03732)."""
        rank = self.rank(module)
        return _by_pattern(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)

    def _in_chosen_layer(self, module: str) -> bool:
        chosen = self.layers_to_transform
        if chosen is None or chosen == ():
            return True
        if self.layers_pattern:
            lists = (self.layers_pattern,) if isinstance(self.layers_pattern, str) else self.layers_pattern
            found = (re.match(rf"(?:^|.*?\.){name}\.(?P<index>\d+)\.", module) for name in lists)
            match = next(filter(None, found), None)
        else:
            match = re.match(r".*?\.[^.]*\.(?P<index>\d+)\.", module)
        return match is not None and int(match["index"]) in ((chosen,) if isinstance(chosen, int) else chosen)


def _named(module: str, names: Names) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _by_pattern(patterns: Mapping[str, T], module: str, default: T) -> T:
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)
