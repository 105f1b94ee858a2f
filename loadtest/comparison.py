"""From several rounds of several targets to medians and ratios. Knows no clock and no process.

A ratio compares a target with the baseline in the same round, so that what slows the machine for a while slows both;
its median and its spread are those of the rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from loadtest.measure import Run
from loadtest.summary import summarise

Numbers = Mapping[str, float]  # by dotted name, such as embed.e2e.p99


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one number over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(median(values), min(values), max(values))


def run_document(run: Run) -> dict[str, Any]:
    """A run as JSON has it."""
    phases = [summarise(phase.name, [phase], run.scenario.slo) for phase in run.phases]
    whole = summarise("", run.phases, run.scenario.slo)
    return {
        "start_seconds": run.start_seconds,
        "usage": {**asdict(run.usage), "cores_used": run.usage.cpu_seconds / run.usage.seconds},
        "all": asdict(whole),
        "phases": {phase.name: asdict(phase) for phase in phases} if len(phases) > 1 else {},
    }


def numbers(document: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a run's document by their dotted names, those of `all` without it."""
    found: dict[str, float] = {}
    for name, value in document.items():
        path = prefix if not prefix and name == "all" else f"{prefix}{name}."
        if isinstance(value, Mapping):
            found |= numbers(value, path)
        elif isinstance(value, int | float):
            found[path.removesuffix(".")] = float(value)
    return found


def spreads(rounds: Sequence[Numbers]) -> dict[str, Spread]:
    """Of each number that all rounds have."""
    common = [name for name in rounds[0] if all(name in numbers for numbers in rounds)]
    return {name: Spread.of([numbers[name] for numbers in rounds]) for name in common}


def ratios(rounds: Sequence[Numbers], baseline: Sequence[Numbers]) -> dict[str, Spread]:
    """Of each number to the baseline's of the same round; without those that are zero there."""
    by_round = [
        {name: value / base[name] for name, value in own.items() if base.get(name)}
        for own, base in zip(rounds, baseline, strict=True)
    ]
    return spreads(by_round)


def compare(runs: Mapping[str, Sequence[Run]], baseline: str | None) -> dict[str, Any]:
    """One scenario's part of the result, from its runs by target and round.

    Without a `baseline`, it is the fastest by requests per second of all targets but the first.
    """
    documents = {label: [run_document(run) for run in rounds] for label, rounds in runs.items()}
    by_target = {label: [numbers(document) for document in rounds] for label, rounds in documents.items()}
    overall = {label: spreads(rounds) for label, rounds in by_target.items()}
    others = list(runs)[1:]
    if baseline is None and others:
        baseline = max(others, key=lambda label: overall[label]["requests"].median)
    scenario = next(iter(runs.values()))[0].scenario
    targets = {
        label: {
            "versions": dict(runs[label][0].versions),
            "rounds": documents[label],
            "spread": {name: asdict(spread) for name, spread in overall[label].items()},
            "ratio": {}
            if baseline is None
            else {name: asdict(r) for name, r in ratios(by_target[label], by_target[baseline]).items()},
        }
        for label in runs
    }
    return {"scenario": scenario.model_dump(exclude_none=True), "baseline": baseline, "targets": targets}
