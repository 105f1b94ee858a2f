"""From records to numbers: rates, latencies and goodput of one measured window or several.

What counts: requests that were answered inside the window, whenever they were sent; tokens that came inside it. The
time to the first token and end-to-end times begin when a request was due. TPOT (time per output token) is the mean of a
request's gaps, one number for each request; inter-token times are all gaps between pieces of all streams.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtest.records import Kind, Outcome, PhaseRun, Record, Window
from loadtest.scenario import Slo

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution of seconds."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Times | None":
        """None if there is nothing; percentiles as numpy interpolates them."""
        if not seconds:
            return None
        p50, p95, p99 = map(float, np.percentile(seconds, PERCENTILES))
        return cls(len(seconds), float(np.mean(seconds)), p50, p95, p99)


@dataclass(frozen=True, slots=True)
class KindSummary:
    """Requests of one kind; rates are per second."""

    answered: int
    failed: int
    unfinished: int  # given up at the end of a phase, or answered after it
    requests: float
    goodput: float  # requests within the objectives
    tokens_in: float
    tokens_out: float
    e2e: Times | None
    ttft: Times | None
    tpot: Times | None
    inter_token: Times | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A phase, or several together."""

    name: str
    seconds: float  # that were measured
    requests: float  # answered per second, embeddings and generations together
    goodput: float  # the same, within the objectives
    embed: KindSummary | None
    generate: KindSummary | None
    query: KindSummary | None
    first_error: str


def summarise(name: str, phases: Sequence[PhaseRun], slo: Slo) -> Summary:
    """The numbers of one or more phases, each with its own window."""
    seconds = sum(phase.window.seconds for phase in phases)
    kinds = {kind: _of_kind(kind, phases, seconds, slo) for kind in Kind}
    parts = [kinds[kind] for kind in (Kind.EMBED, Kind.GENERATE)]
    errors = (record.error for phase in phases for record in phase.records if record.error)
    return Summary(
        name=name,
        seconds=seconds,
        requests=sum(part.requests for part in parts if part),
        goodput=sum(part.goodput for part in parts if part),
        embed=kinds[Kind.EMBED],
        generate=kinds[Kind.GENERATE],
        query=kinds[Kind.QUERY],
        first_error=next(errors, ""),
    )


def answered(phases: Iterable[PhaseRun], kind: Kind) -> list[Record]:
    """The requests whose latencies count."""
    return [
        record
        for phase in phases
        for record in phase.records
        if record.kind is kind and record.outcome is Outcome.OK and phase.window.holds(record.end)
    ]


def e2e(record: Record) -> float:
    """Seconds from when an answered request was due to its end."""
    assert record.end is not None
    return record.end - record.due


def ttft(record: Record) -> float | None:
    """Seconds to the first token; None if there was none."""
    return record.times[0] - record.due if record.times else None


def tpot(record: Record) -> float | None:
    """Mean seconds for each token after the first; None if there was none."""
    further = sum(record.tokens[1:])
    return (record.times[-1] - record.times[0]) / further if further else None


def _of_kind(kind: Kind, phases: Sequence[PhaseRun], seconds: float, slo: Slo) -> KindSummary | None:
    records = [record for phase in phases for record in phase.records if record.kind is kind]
    if not records:
        return None
    done = answered(phases, kind)
    failed = sum(record.outcome is Outcome.FAILED for record in records)
    unfinished = sum(_unfinished(r, phase.window) for phase in phases for r in phase.records if r.kind is kind)
    good = sum(_meets(record, slo) for record in done)
    tokens_out = sum(
        tokens
        for phase in phases
        for record in phase.records
        if record.kind is kind
        for time, tokens in zip(record.times, record.tokens, strict=True)
        if phase.window.holds(time)
    )
    gaps = [later - earlier for record in done for earlier, later in pairwise(record.times)]
    return KindSummary(
        answered=len(done),
        failed=failed,
        unfinished=unfinished,
        requests=len(done) / seconds,
        goodput=good / seconds,
        tokens_in=sum(record.tokens_in for record in done) / seconds,
        tokens_out=tokens_out / seconds,
        e2e=Times.of([e2e(record) for record in done]),
        ttft=Times.of(_known(ttft, done)),
        tpot=Times.of(_known(tpot, done)),
        inter_token=Times.of(gaps),
    )


def _unfinished(record: Record, window: Window) -> bool:
    late = record.outcome is Outcome.OK and record.end is not None and record.end > window.end
    return late or record.outcome is Outcome.UNFINISHED


def _meets(record: Record, slo: Slo) -> bool:
    match record.kind:
        case Kind.EMBED:
            return e2e(record) <= slo.embed
        case Kind.QUERY:
            return slo.query is None or e2e(record) <= slo.query
        case Kind.GENERATE:
            first, further = ttft(record), tpot(record)
            return (first is None or first <= slo.ttft) and (further is None or further <= slo.tpot)


def _known(measure: Callable[[Record], float | None], records: Sequence[Record]) -> list[float]:
    return [value for value in map(measure, records) if value is not None]
