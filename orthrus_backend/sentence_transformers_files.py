"""The schemas of the files in which Sentence Transformers describes a model (versions 1 to 6).

Every key is honoured, harmless, off, or refused by its name. Knows nothing of tensors, and not how the files fit
together.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from orthrus_backend.params import PoolingMode
from orthrus_backend.validation import one_line, shown

T = TypeVar("T")

POOLING_MODES: Mapping[str, PoolingMode] = {  # their names and ours
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
LEGACY_POOLING_KEYS: Mapping[str, str] = {  # in the order in which several are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"} | {
    "Sigmoid": "sigmoid"
}
ACTIVATION_FOLDERS = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")
MODULE_FOLDERS = ("models", "base.modules", "sentence_transformer.modules")
ModuleName = Literal["Transformer", "Pooling", "Dense", "Normalize"]


def _module_name(reference: object) -> object:
    """`Pooling` for each name under which some version has kept its class."""
    if isinstance(reference, str):
        folder, _, name = reference.rpartition(".")
        folder = folder.removesuffix(f".{name}").removesuffix(f".{name.lower()}")
        known = name in get_args(ModuleName) and folder.startswith("sentence_transformers.")
        if known and folder.removeprefix("sentence_transformers.") in MODULE_FOLDERS:
            return name
    return reference


def _activation(reference: object) -> object:
    if isinstance(reference, str):
        folder, _, name = reference.rpartition(".")
        if folder in ACTIVATION_FOLDERS and name in ACTIVATIONS:
            return ACTIVATIONS[name]
        raise ValueError(f"{shown(reference)} is not supported; known are torch.nn.{', '.join(sorted(ACTIVATIONS))}")
    return reference


def _pooling_mode(name: object) -> object:
    if isinstance(name, str):
        if name not in POOLING_MODES:
            raise ValueError(f"{shown(name)} is not supported; known are {', '.join(sorted(POOLING_MODES))}")
        return POOLING_MODES[name]
    return name


def _none_is_empty(value: object) -> object:
    return "" if value is None else value


def _relative(path: str) -> str:
    if path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/"):
        raise ValueError(f"{shown(path)} lies outside the model")
    return path


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    harmless: ClassVar[frozenset[str]] = frozenset()  # keys that change no vector

    @model_validator(mode="before")
    @classmethod
    def _sort_out(cls, keys: Any) -> Any:
        """A key that is off asks for nothing, whatever it is; any other has to be known."""
        if not isinstance(keys, dict):
            return keys
        for name, value in keys.items():
            known = name in cls.model_fields or name in cls.harmless
            if not known and value not in (None, False, "", [], {}):
                raise ValueError(f"{name} = {shown(value)} is not supported")
        return {name: value for name, value in keys.items() if name in cls.model_fields and value is not None}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file.

        Raises:
            ValueError: not JSON of this form, or a key that cannot be honoured; the message names both.
        """
        return read_json(path, TypeAdapter(cls))


class ModuleEntry(_File):
    """One entry of `modules.json`."""

    harmless = frozenset({"idx", "name"})
    path: Annotated[str, BeforeValidator(_relative)]
    type: Annotated[ModuleName, BeforeValidator(_module_name)]


class TransformerFile(_File):
    """`sentence_bert_config.json`: how texts reach the model."""

    harmless = frozenset({"unpad_inputs"})  # how a batch is padded
    max_seq_length: int | None = Field(None, ge=1)
    do_lower_case: bool = False
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    module_output_name: Literal["token_embeddings"] = "token_embeddings"
    modality_config: dict[Literal["text"], dict[str, str | list[str]]] = {}  # others: chat templates, images, sound

    @model_validator(mode="after")
    def _plain_text(self) -> Self:
        plain = {"method": "forward", "method_output_name": "last_hidden_state"}
        if self.modality_config.get("text", plain) != plain:
            raise ValueError(f"modality_config = {shown(self.modality_config)} is not supported")
        return self


class PoolingFile(_File):
    """`1_Pooling/config.json`, in both schemas."""

    embedding_dimension: int = Field(ge=1)
    pooling_mode: tuple[Annotated[PoolingMode, BeforeValidator(_pooling_mode)], ...] = Field(min_length=1)
    include_prompt: bool = True

    @model_validator(mode="before")
    @classmethod
    def _newest_schema(cls, keys: Any) -> Any:
        if not isinstance(keys, dict):
            return keys
        chosen = [mode for key, mode in LEGACY_POOLING_KEYS.items() if keys.get(key)]
        new = {key: value for key, value in keys.items() if key not in LEGACY_POOLING_KEYS}
        if "word_embedding_dimension" in new:
            new.setdefault("embedding_dimension", new.pop("word_embedding_dimension"))
        mode = new.get("pooling_mode") or chosen or ["mean"]  # both given, or none: as the reference decides
        return new | {"pooling_mode": [mode] if isinstance(mode, str) else mode}


class DenseFile(_File):
    """`2_Dense/config.json`."""

    in_features: int = Field(ge=1)
    out_features: int = Field(ge=1)
    bias: bool = True
    activation_function: Annotated[str, BeforeValidator(_activation)] = "tanh"
    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] = "sentence_embedding"


class NormalizeFile(_File):
    """`3_Normalize/config.json`, which older versions do not write."""

    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] = "sentence_embedding"


class PromptsFile(_File):
    """`config_sentence_transformers.json`."""

    harmless = frozenset({"__version__", "similarity_fn_name", "requirements"})
    prompts: dict[str, Annotated[str, BeforeValidator(_none_is_empty)]] = {}
    default_prompt_name: str | None = None
    truncate_dim: int | None = Field(None, ge=1)
    model_type: Literal["SentenceTransformer"] = "SentenceTransformer"

    @model_validator(mode="after")
    def _default_is_defined(self) -> Self:
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ValueError(f"default_prompt_name {shown(self.default_prompt_name)} is not one of the prompts")
        return self

    @property
    def default_prompt(self) -> str:
        """The prompt of that name, or nothing."""
        return self.prompts[self.default_prompt_name] if self.default_prompt_name is not None else ""


class TokenizerFile(BaseModel):
    """What of `tokenizer_config.json` concerns the length of a text and the token at its end."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())
    model_max_length: float | None = None
    add_eos_token: bool | None = None
    tokenizer_class: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; raises ValueError as the others do."""
        return read_json(path, TypeAdapter(cls))


def read_json(path: Path, schema: TypeAdapter[T]) -> T:
    """A JSON document of a known form.

    Raises:
        ValueError: it cannot be read or has another form; the message names file, key and value.
    """
    try:
        return schema.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{path}: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
