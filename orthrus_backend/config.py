"""What an operator can set, checked once at start.

Responsible for names, defaults and ranges of every setting and for the only look at the environment. It does not know
what the settings are used for.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import platformdirs
from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError, model_validator

from orthrus_backend.validation import one_line

NO_ADAPTER = "none"  # as embedding_adapter
PolicyName = Literal["ibs", "fcfs", "homogeneous"]


def cache_dir() -> Path:
    """Folder for models that Orthrus prepares itself: ``ORTHRUS_CACHE``, or ``orthrus`` in the user's cache folder."""
    return Path(os.environ.get("ORTHRUS_CACHE") or platformdirs.user_cache_dir("orthrus", appauthor=False))


def named_paths(entries: Iterable[str]) -> dict[str, str]:
    """Paths by name, from entries of the form `name=path`; empty ones are skipped.

    Raises:
        ValueError: an entry has another form, or a name comes twice.
    """
    paths: dict[str, str] = {}
    for entry in filter(None, map(str.strip, entries)):
        name, _, path = (part.strip() for part in entry.partition("="))
        if not (name and path):
            raise ValueError(f"{entry!r} is not of the form name=path")
        if name in paths:
            raise ValueError(f"adapter {name!r} is given twice")
        paths[name] = path
    return paths


def _split_adapters(value: object) -> object:
    return named_paths(value.split(",")) if isinstance(value, str) else value


def _auto_is_none(value: object) -> object:
    return None if value == "auto" else value


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(_Settings):
    """Which weights are served, and how they are held."""

    model: str = Field("", description="Hugging Face folder, .gguf file or hub id; empty for the default model")
    embedding_model: str = Field("", description="folder or hub id of a model for embeddings; empty: the same model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    max_model_len: int = Field(0, ge=0, description="tokens of prompt and output together; 0 for the model's own limit")
    adapters: Annotated[dict[str, str], BeforeValidator(_split_adapters)] = {}
    embedding_adapter: str = Field(
        "", description="folder of a LoRA adapter for texts that name none; empty: the default model's own; none"
    )
    adapters_file: str = Field("", description="file with a line name=path for each further adapter; may change")
    threads: int = Field(0, ge=0, description="CPU threads of one instance; 0 for all cores")

    @model_validator(mode="after")
    def _adapts_what_generates(self) -> Self:
        if self.embedding_model and self.embedding_adapter not in ("", NO_ADAPTER):
            raise ValueError(
                f"embedding_adapter {self.embedding_adapter!r} belongs to model, and embedding_model "
                f"{self.embedding_model!r} embeds instead of it: give one of the two"
            )
        return self


class SchedulerSettings(_Settings):
    """How a step is filled."""

    policy: PolicyName = "ibs"
    token_budget: int = Field(512, ge=1, description="tokens computed in one step, at most")
    chunk_size: int = Field(256, ge=0, description="tokens that one turn gives a request, at most; 0 for the budget")
    max_running: int = Field(64, ge=1, description="generations that decode at the same time, at most")
    patience: int = Field(4, ge=1, description="steps that a queue with work waits for its turn, at most")
    step_time: float = Field(0.0, ge=0, description="seconds that a step should take, at most; 0 for no such limit")
    count_expected_output: bool = Field(False, description="count max_tokens still expected as outstanding work")

    @model_validator(mode="after")
    def _decodes_leave_room(self) -> Self:
        if self.max_running >= self.token_budget:
            raise ValueError(
                f"max_running {self.max_running} must be below token_budget {self.token_budget}: "
                "running generations take one token of every step each, and the queues need what is left"
            )
        return self


class CacheSettings(_Settings):
    """Memory for keys and values."""

    kv_memory: Annotated[ByteSize | None, BeforeValidator(_auto_is_none)] = Field(
        None, description="bytes, such as 512MiB; None to derive it from the memory that is free"
    )
    prefix_caching: bool = Field(True, description="do not compute again what requests begin with, while it is kept")


class LimitSettings(_Settings):
    """What one request may bring, and how much may wait; more is refused before any work is done."""

    max_queued_requests: int = Field(4096, ge=1, description="requests of one kind that wait, at most")
    max_queued_tokens: int = Field(524288, ge=1, description="tokens of the waiting requests of one kind, at most")
    max_texts_per_request: int = Field(2048, ge=1, description="texts of one embedding call, at most")
    max_request_bytes: Annotated[ByteSize, Field(ge=1)] = Field(
        ByteSize(16 << 20), description="size of all inputs of one request, such as 16MiB"
    )
    default_timeout: float = Field(0.0, ge=0, description="seconds of a request that sets no timeout; 0 for no limit")


class DrainSettings(_Settings):
    """How serving ends."""

    drain_timeout: float = Field(10.0, ge=0, description="seconds that running work gets to finish at shutdown")
    drain_file: str = Field("", description="file that asks for the end once something is written to it")


class StreamSettings(_Settings):
    """How the text of a generation is sent on while it is made."""

    stream_interval: int = Field(1, ge=1, description="tokens in one message of a stream, after its first")


class ObservabilitySettings(_Settings):
    """What is told about single calls."""

    request_log: bool = Field(True, description="one line of JSON on stderr for each call, at its end")
    traces: bool = Field(False, description="OpenTelemetry spans of calls that come with a trace context")


_GROUPS: dict[str, type[_Settings]] = {
    "model": ModelSettings,
    "scheduler": SchedulerSettings,
    "cache": CacheSettings,
    "limits": LimitSettings,
    "drain": DrainSettings,
    "streams": StreamSettings,
    "observability": ObservabilitySettings,
}
PARAMETERS = tuple(sorted(name for group in _GROUPS.values() for name in group.model_fields))


class EngineSettings(_Settings):
    """Everything that one engine instance is built from."""

    model: ModelSettings = ModelSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = LimitSettings()
    drain: DrainSettings = DrainSettings()
    streams: StreamSettings = StreamSettings()
    observability: ObservabilitySettings = ObservabilitySettings()

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """Build from the flat ``parameters`` of Triton's model configuration; an empty value means the default.

        Raises:
            ValueError: a parameter is unknown or out of range; the message names it, its value and the limit.
        """
        nested: dict[str, dict[str, str]] = {}
        for name, value in parameters.items():
            if value.strip() == "":
                continue
            group = next((g for g, settings in _GROUPS.items() if name in settings.model_fields), None)
            if group is None:
                raise ValueError(f"unknown parameter {name!r}; known are {', '.join(PARAMETERS)}")
            nested.setdefault(group, {})[name] = value.strip()
        try:
            return cls.model_validate(nested)
        except ValidationError as error:
            raise ValueError(one_line(error, sections=_GROUPS)) from error
