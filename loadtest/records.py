"""What the driver notes of each request, and of each phase. Values only; all times are seconds of one clock."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What is measured apart."""

    EMBED = "embed"
    GENERATE = "generate"
    QUERY = "query"  # a question of a retrieval pipeline: all its requests together


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # it was given up because its phase ended


@dataclass(slots=True)
class Record:
    """One request.

    `due` is when it should have been sent: latencies count from there, so that a driver that is late hides nothing.
    `times` and `tokens` are of the parts of a stream that brought tokens: when each came, and how many it brought. They
    are arrays, since a long run has millions of them.
    """

    kind: Kind
    due: float
    sent: float
    times: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: "array[int]" = field(default_factory=lambda: array("L"))
    end: float | None = None
    tokens_in: int = 0
    outcome: Outcome = Outcome.UNFINISHED
    error: str = ""

    @property
    def tokens_out(self) -> int:
        """Tokens that were generated."""
        return sum(self.tokens)

    def add(self, time: float, tokens: int) -> None:
        """Note a part of a stream."""
        self.times.append(time)
        self.tokens.append(tokens)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a phase that is measured."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    def holds(self, time: float | None) -> bool:
        """Whether something that happened at `time` counts."""
        return time is not None and self.start <= time <= self.end


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """A phase as it went."""

    name: str
    window: Window
    records: Sequence[Record]
