"""One target from start to stop, with one or more scenarios run on it in turn, and what was measured of each."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.driver import drive, warm_up
from loadtest.records import Kind, PhaseRun
from loadtest.scenario import Mix, Scenario
from loadtest.targets.catalogue import TargetName
from loadtest.targets.target import BOTH, Settings, Target, TargetError
from loadtest.usage import Usage, UsageWatch
from loadtest.workload import Vocabulary

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario on one target, once."""

    scenario: Scenario
    target: str  # its label
    start_seconds: float  # from nothing to ready
    phases: Sequence[PhaseRun]
    usage: Usage
    versions: Mapping[str, str]


async def measure(
    name: TargetName, settings: Settings, scenarios: Sequence[Scenario], vocabulary: Vocabulary, seed: int, say: Say
) -> list[Run]:
    """Start a target, run the scenarios, stop it.

    Raises:
        TargetError: it does not start, or what `fit` raises.
        BrokenTargetError: it answers nothing.
    """
    target = fit(name, settings, scenarios)
    runs = []
    try:
        say(f"{name.label}: starting")
        started = time.perf_counter()
        await target.start()
        start_seconds = time.perf_counter() - started
        say(f"{name.label}: ready after {start_seconds:.1f} s")
        versions = target.versions()
        await warm_up(target, vocabulary, max(scenario.longest for scenario in scenarios))
        for scenario in scenarios:
            say(f"{name.label}: {scenario.name}")
            watch = UsageWatch(target.processes)
            try:
                phases = await drive(target, scenario, vocabulary, seed)
            finally:
                usage = watch.finish()
            runs.append(Run(scenario, name.label, start_seconds, phases, usage, versions))
    finally:
        await target.stop()
    return runs


def fit(name: TargetName, settings: Settings, scenarios: Sequence[Scenario]) -> Target:
    """The target, not started.

    Raises:
        ValueError: its options cannot be.
        TargetError: it is not installed, or cannot do what a scenario asks for.
    """
    target = name.make(settings)
    for scenario in scenarios:
        if missing := kinds_of(scenario) - target.kinds:
            raise TargetError(f"{name.label} does not {' or '.join(missing)}, which scenario {scenario.name} asks for")
    return target


def kinds_of(scenario: Scenario) -> frozenset[Kind]:
    """What a target must be able to do."""
    kinds: set[Kind] = set()
    for phase in scenario.phases:
        for stream in phase.streams:
            if not isinstance(stream.work, Mix):
                return BOTH
            kinds |= {Kind.EMBED} if stream.work.embed_share > 0 else set()
            kinds |= {Kind.GENERATE} if stream.work.embed_share < 1 else set()
    return frozenset(kinds)
