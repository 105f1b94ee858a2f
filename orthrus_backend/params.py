"""What a caller may ask of one request: names, defaults and ranges.

The names and meanings follow vLLM's sampling parameters. Numbers may come as strings, as perf tools send them. Knows
nothing of tokenizers, models or tensors: limits that depend on them are checked where they are known.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from orthrus_backend.validation import one_line, shown

PoolingMode = Literal["mean", "mean_sqrt_len", "weighted_mean", "max", "cls", "last"]
GREEDY_TEMPERATURE = 1e-3  # at or below it, division by the temperature only adds rounding: the maximum is taken


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


_Modes = Annotated[tuple[PoolingMode, ...], Field(min_length=1, max_length=6), BeforeValidator(_listed)]
_Words = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...], BeforeValidator(_listed)]
_FLAGS = (bool, bool | None)


class _Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_flags_for_numbers(cls, keys: Any) -> Any:
        """`true` would pass for 1."""
        for name, value in keys.items() if isinstance(keys, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation not in _FLAGS:
                raise ValueError(f"{name}: {str(value).lower()} is not what it takes")
        return keys

    @classmethod
    def parse(cls, document: str | None, base: Mapping[str, Any] | None = None, **overrides: Any) -> Self:
        """Read a JSON object over the keys of `base`; `overrides` that are not None replace both.

        A null is the default; that of a key which may be None stays said: `max_tokens: null` asks for all the room.

        Raises:
            ValueError: not a JSON object, an unknown key, or a value out of range; the message names it.
        """
        try:
            keys = json.loads(document) if document else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not valid JSON: {error}") from error
        if not isinstance(keys, dict):
            raise ValueError(f"a JSON object is expected, got {shown(keys)}")
        keys = {**(base or {}), **keys}
        fields = cls.model_fields
        given = {n: v for n, v in keys.items() if v is not None or n not in fields or fields[n].default is None}
        return cls.from_mapping(given | {name: value for name, value in overrides.items() if value is not None})

    @classmethod
    def from_mapping(cls, keys: Mapping[str, Any]) -> Self:
        """Validate the keys; raises ValueError with the offending key, value and limit."""
        try:
            return cls.model_validate(dict(keys))
        except ValidationError as error:
            raise ValueError(one_line(error)) from error


class SamplingParams(_Params):
    """How one generation chooses its tokens and when it ends."""

    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)  # 0 and -1: all tokens
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    n: int = Field(1, ge=1, le=16)  # continuations of the one prompt
    stop: _Words = Field((), max_length=16)
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field((), max_length=1024)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field({}, max_length=1024)
    bad_words: _Words = Field((), max_length=128)
    logprobs: int | None = Field(None, ge=0, le=20)
    adapter: str | None = None  # empty: none

    @model_validator(mode="before")
    @classmethod
    def _alias(cls, keys: Any) -> Any:
        if isinstance(keys, dict) and "lora_name" in keys:
            if "adapter" in keys:
                raise ValueError("adapter and its alias lora_name are both given")
            keys = {("adapter" if name == "lora_name" else name): value for name, value in keys.items()}
        return keys

    @model_validator(mode="after")
    def _minimum_below_maximum(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        return self

    @model_validator(mode="after")
    def _several_are_drawn(self) -> Self:
        if self.n > 1 and self.greedy:
            raise ValueError(f"n {self.n} with temperature {self.temperature:g}: greedy texts are all the same, n is 1")
        return self

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken instead of drawing one."""
        return self.temperature <= GREEDY_TEMPERATURE


class EmbeddingParams(_Params):
    """How one text becomes a vector; None leaves a choice to the model's own files.

    The vectors of several pooling modes are concatenated. An empty instruction means none, not even the model's own.
    """

    pooling: _Modes | None = None
    normalize: bool | None = None
    dimensions: int | None = Field(None, ge=1)
    prompt_name: str | None = None
    instruction: str | None = None
    truncate: Literal["error", "end", "start"] = "error"
    adapter: str | None = None  # empty: none, not even the one that embeds by default

    @model_validator(mode="after")
    def _one_prefix(self) -> Self:
        if self.prompt_name is not None and self.instruction is not None:
            raise ValueError("prompt_name and instruction are both given; only one text can stand before the input")
        return self
