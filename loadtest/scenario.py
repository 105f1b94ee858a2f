"""What a load test asks for, and when: scenarios as written in TOML, checked when they are read.

Responsible for names, ranges and defaults, for making a scenario smaller, and for how long its longest request is. It
does not know texts, targets or clocks.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from orthrus_backend.validation import one_line

FOLDER = Path(__file__).parent / "scenarios"
RETOKENISED = 1.25  # an answer that is embedded may have more tokens than were generated, by this factor at most


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _ascending(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"the least, {bounds[0]}, is above the most, {bounds[1]}")
    return bounds


_Count = Annotated[int, Field(ge=1)]
Length = _Count | Annotated[tuple[_Count, _Count], AfterValidator(_ascending)]  # all the same, or evenly spread


def most(length: Length) -> int:
    """The largest value of a length."""
    return length if isinstance(length, int) else length[1]


class Closed(_Part):
    """So many clients; each sends its next request when it has the answer to the last one."""

    kind: Literal["closed"]
    clients: _Count


class Poisson(_Part):
    """Requests that come independently of each other and of the answers."""

    kind: Literal["poisson"]
    rate: float = Field(gt=0, description="requests a second")


class Gamma(_Part):
    """Requests in bursts: gaps are gamma-distributed with this coefficient of variation; 1 is Poisson."""

    kind: Literal["gamma"]
    rate: float = Field(gt=0, description="requests a second")
    variation: float = Field(gt=0)


class Burst(_Part):
    """All requests at once."""

    kind: Literal["burst"]


Arrivals = Closed | Poisson | Gamma | Burst


class Mix(_Part):
    """Embeddings and generations, independent of each other."""

    kind: Literal["mix"]
    embed_share: float = Field(ge=0, le=1, description="of all requests")
    embed_tokens: Length = 128
    prompt_tokens: Length = 128
    output_tokens: Length = 128

    @property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        generation = most(self.prompt_tokens) + most(self.output_tokens)
        return max(most(self.embed_tokens) if self.embed_share else 0, generation if self.embed_share < 1 else 0)


class Retrieval(_Part):
    """Questions answered in rounds: embed the query, find documents, generate; the answer joins the next query."""

    kind: Literal["retrieval"]
    rounds: _Count = 3
    question_tokens: Length
    documents: Length
    document_tokens: Length
    output_tokens: Length
    instruction_tokens: int = Field(0, ge=0, description="tokens at the start of every prompt, the same in all")

    @property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        found = self.instruction_tokens + most(self.documents) * most(self.document_tokens)
        prompt = found + most(self.question_tokens) + most(self.output_tokens)
        query = most(self.question_tokens) + int(RETOKENISED * most(self.output_tokens)) + 1
        return max(prompt, query)


class Stream(_Part):
    """Requests of one sort, by one way of arriving. Several streams of a phase run side by side."""

    arrivals: Arrivals = Field(discriminator="kind")
    work: Mix | Retrieval = Field(discriminator="kind")
    requests: int | None = Field(None, ge=1, description="after so many, no more are sent")

    @model_validator(mode="after")
    def _burst_has_a_size(self) -> Self:
        if self.arrivals.kind == "burst" and self.requests is None:
            raise ValueError("a burst needs `requests`")
        return self


class Phase(_Part):
    """A part of a scenario. It ends after `seconds`, or when all `requests` of its streams are answered."""

    name: str = ""
    seconds: float | None = Field(None, gt=0)
    warmup: float = Field(0, ge=0, description="seconds at the start that are not measured")
    streams: tuple[Stream, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.seconds is None and any(stream.requests is None for stream in self.streams):
            raise ValueError("it would never end: give `seconds`, or `requests` of every stream")
        if self.seconds is not None and self.warmup >= self.seconds:
            raise ValueError(f"warmup {self.warmup:g} leaves nothing of seconds {self.seconds:g}")
        return self


class Slo(_Part):
    """Service-level objectives, in seconds; requests within all of their kind are goodput."""

    ttft: float = Field(gt=0, description="to the first token")
    tpot: float = Field(gt=0, description="mean for each further token")
    embed: float = Field(gt=0, description="an embedding, end to end")
    query: float | None = Field(None, gt=0, description="a question of a retrieval pipeline, with all its rounds")


class Scenario(_Part):
    """A load test: phases in turn."""

    name: str
    description: str
    slo: Slo
    phases: tuple[Phase, ...] = Field(min_length=1)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        return max(stream.work.longest for phase in self.phases for stream in phase.streams)

    def scaled(self, factor: float) -> Self:
        """With every count of clients, requests, documents and tokens, and every rate, times `factor`; 1 at least.

        Raises:
            ValueError: `factor` is not above 0.
        """
        if factor <= 0:
            raise ValueError(f"scale {factor:g} is not above 0")
        phases = [{**phase, "streams": [_scaled(s, factor) for s in phase["streams"]]} for phase in self._phases()]
        return self._changed(phases, f"all numbers scaled by {factor:g}" if factor != 1 else "")

    def lasting(self, seconds: float) -> Self:
        """With every phase ended after `seconds`, its warm-up in proportion.

        Raises:
            ValueError: `seconds` is not above 0.
        """
        if seconds <= 0:
            raise ValueError(f"duration {seconds:g} is not above 0")
        phases = []
        for phase in self._phases():
            warmup = phase["warmup"] * seconds / phase["seconds"] if phase["seconds"] else 0.0
            phases.append({**phase, "seconds": seconds, "warmup": warmup})
        return self._changed(phases, f"{seconds:g} s a phase")

    def _changed(self, phases: list[dict[str, Any]], note: str) -> Self:
        """The same with other phases; the description says what was changed."""
        description = f"{self.description} ({note})" if note else self.description
        return type(self).model_validate({**self.model_dump(), "phases": phases, "description": description})

    def _phases(self) -> Iterator[dict[str, Any]]:
        return (phase.model_dump() for phase in self.phases)


_RATES = ("rate",)
_COUNTS = (
    *("clients", "requests", "documents", "document_tokens", "instruction_tokens", "question_tokens"),
    *("embed_tokens", "prompt_tokens", "output_tokens"),
)


def _scaled(values: dict[str, Any], factor: float) -> dict[str, Any]:
    """`values`, and those of the tables in it, with all counts and rates times `factor`."""

    def scale(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _scaled(value, factor)
        if name in _RATES:
            return value * factor
        if name not in _COUNTS or not value:
            return value
        return tuple(scale(name, v) for v in value) if isinstance(value, tuple) else max(1, round(value * factor))

    return {name: scale(name, value) for name, value in values.items()}


def names() -> list[str]:
    """The scenarios that come with this package."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def read_scenario(name: str) -> Scenario:
    """The scenario of that name, or in that TOML file.

    Raises:
        ValueError: there is none, or something in it cannot be; the message names the value and the limit.
    """
    file = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not file.is_file():
        raise ValueError(f"unknown scenario {name!r}: it is a TOML file, or one of {', '.join(names())}")
    try:
        return Scenario.model_validate({"name": file.stem, **tomllib.loads(file.read_text(encoding="utf-8"))})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file}: {error}") from error
    except ValidationError as error:
        raise ValueError(f"{file}: {one_line(error)}") from error
