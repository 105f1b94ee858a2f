"""Pictures of a scenario's results, each as PNG and SVG. Reads the runs and the document that JSON gets."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.measure import Run
from loadtest.records import Kind, Record
from loadtest.summary import answered, e2e, ttft

FORMATS = ("png", "svg")
Runs = Mapping[str, Sequence[Run]]  # by target, in rounds


def plot(runs: Runs, result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write all pictures of one scenario into `folder`; the files."""
    name = result["scenario"]["name"]
    files = _save(_overview(runs, result), folder / name)
    phases = next(iter(runs.values()))[0].phases
    if len(phases) > 1:
        files += _save(_by_phase(result, [phase.name for phase in phases]), folder / f"{name}-phases")
    if len(runs) > 2:
        files += _save(tradeoff(result), folder / f"{name}-tradeoff")
    return files


def _overview(runs: Runs, result: Mapping[str, Any]) -> Figure:
    """Throughput beside three distributions of latencies, over all rounds."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(result["scenario"]["name"])
    axes = figure.subplots(2, 2)
    _throughput(axes[0, 0], result)
    _distribution(axes[0, 1], runs, Kind.EMBED, e2e, "embedding: end to end")
    _distribution(axes[1, 0], runs, Kind.GENERATE, ttft, "generation: time to the first token")
    has_queries = any(answered(run.phases, Kind.QUERY) for rounds in runs.values() for run in rounds)
    kind, label = (Kind.QUERY, "question") if has_queries else (Kind.GENERATE, "generation")
    _distribution(axes[1, 1], runs, kind, e2e, f"{label}: end to end")
    return figure


def _throughput(axes: Axes, result: Mapping[str, Any]) -> None:
    targets = result["targets"]
    bottom = np.zeros(len(targets))
    for kind, label in (("embed", "embeddings"), ("generate", "generations")):
        heights = np.array([_spread(target, f"{kind}.requests")["median"] for target in targets.values()])
        axes.bar(range(len(targets)), heights, bottom=bottom, width=0.6, label=label)
        bottom += heights
    both = [_spread(target, "requests") for target in targets.values()]
    middle = np.array([spread["median"] for spread in both])
    errors = [middle - [spread["least"] for spread in both], [spread["most"] for spread in both] - middle]
    axes.errorbar(range(len(targets)), middle, yerr=errors, fmt="none", ecolor="black", capsize=4)
    axes.set_xticks(range(len(targets)), list(targets), rotation=15, ha="right")
    axes.set_ylabel("requests/s")
    axes.set_title("throughput: median, least and most of the rounds")
    axes.legend()


def _distribution(axes: Axes, runs: Runs, kind: Kind, measure: Callable[[Record], float | None], title: str) -> None:
    """Which share of the requests took at most so long."""
    for label, rounds in runs.items():
        values = [
            value for run in rounds for record in answered(run.phases, kind) if (value := measure(record)) is not None
        ]
        if values:
            axes.ecdf(values, label=label)
            axes.legend(loc="lower right")
    axes.set_title(title)
    axes.set_xlabel("seconds")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)


def _by_phase(result: Mapping[str, Any], phases: Sequence[str]) -> Figure:
    """What changes from phase to phase."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    figure.suptitle(f"{result['scenario']['name']}: by phase")
    panels = {"requests": "requests/s", "embed.e2e.p99": "embedding p99 [s]", "generate.e2e.p99": "generation p99 [s]"}
    for axes, (key, label) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name, target in result["targets"].items():
            spreads = [_spread(target, f"phases.{phase}.{key}") for phase in phases]
            middle = np.array([spread["median"] for spread in spreads])
            errors = [middle - [spread["least"] for spread in spreads], [spread["most"] for spread in spreads] - middle]
            axes.errorbar(phases, middle, yerr=errors, marker="o", capsize=3, label=name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def tradeoff(result: Mapping[str, Any]) -> Figure:
    """Throughput against the latencies that callers notice: up and to the left is better."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    figure.suptitle(f"{result['scenario']['name']}: throughput against latency, median, least and most of the rounds")
    panels = {"generate.inter_token.p95": "between tokens, p95 [s]", "embed.e2e.p95": "embedding, p95 [s]"}
    for axes, (key, label) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name, target in result["targets"].items():
            if key not in target["spread"]:
                continue
            across, up = (_spread(target, one) for one in (key, "requests"))
            errors = [[[one["median"] - one["least"]], [one["most"] - one["median"]]] for one in (across, up)]
            axes.errorbar(
                across["median"], up["median"], xerr=errors[0], yerr=errors[1], marker="o", capsize=3, label=name
            )
        axes.set_xlabel(label)
        axes.set_ylabel("requests/s")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if axes.containers:
            axes.legend()
    return figure


def _spread(target: Mapping[str, Any], key: str) -> Mapping[str, float]:
    """Zeros where there is no such number."""
    found: Mapping[str, float] = target["spread"].get(key, {"median": 0.0, "least": 0.0, "most": 0.0})
    return found


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(f"{path.name}.{form}") for form in FORMATS]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
