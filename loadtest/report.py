"""The table of a scenario's results, for people. Reads the document that JSON gets, so that both say the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

PEAK = "usage.peak_pss"


@dataclass(frozen=True, slots=True)
class Line:
    """One row: which number, what it is called, and what it is multiplied with to be shown."""

    key: str
    label: str
    unit: str
    factor: float = 1.0


LINES = (
    Line("requests", "all", "req/s"),
    Line("goodput", "all, within the objectives", "req/s"),
    Line("embed.requests", "embeddings", "req/s"),
    *(Line(f"embed.e2e.{p}", f"embedding {p}", "s") for p in ("p50", "p95", "p99")),
    Line("generate.requests", "generations", "req/s"),
    Line("generate.tokens_out", "tokens generated", "tok/s"),
    *(Line(f"generate.e2e.{p}", f"generation {p}", "s") for p in ("p50", "p95", "p99")),
    *(Line(f"generate.ttft.{p}", f"first token {p}", "s") for p in ("p50", "p95", "p99")),
    *(Line(f"generate.tpot.{p}", f"per output token {p}", "ms", 1e3) for p in ("p50", "p99")),
    *(Line(f"generate.inter_token.{p}", f"between tokens {p}", "ms", 1e3) for p in ("p50", "p99")),
    Line("query.requests", "questions", "req/s"),
    *(Line(f"query.e2e.{p}", f"question {p}", "s") for p in ("p50", "p95", "p99")),
    Line("usage.cores_used", "cores used", ""),
    Line(PEAK, "peak memory (PSS)", "MiB", 2**-20),
    Line("start_seconds", "start", "s"),
)
FAULTS = (("failed", "failed"), ("unfinished", "given up at the end"))


def table(result: Mapping[str, Any]) -> Table:
    """All rows that at least one target has a number for; in each cell the median, its spread, and the ratio."""
    targets, baseline = result["targets"], result["baseline"]
    rounds = len(next(iter(targets.values()))["rounds"])
    title = f"{result['scenario']['name']}: {result['scenario']['description']}"
    caption = f"median of {rounds} rounds (least to most)" if rounds > 1 else None
    if baseline is not None:
        caption = f"{caption or 'one round'}; x: ratio to {baseline}, of the same round"
    shown = Table("", *targets, title=title, caption=caption)
    for line in LINES:
        cells = [cell(target, line, label == baseline) for label, target in targets.items()]
        if any(cells):
            shown.add_row(f"{line.label}{f' [{line.unit}]' if line.unit else ''}".replace("[", r"\["), *cells)
    shown.add_section()
    for key, label in FAULTS:
        shown.add_row(label, *(str(_total(target, key)) for target in targets.values()))
    return shown


def faults(result: Mapping[str, Any]) -> list[str]:
    """A line for each target some of whose requests failed."""
    return [
        f"{label}: {count} requests failed, the first with {_first_error(target)}"
        for label, target in result["targets"].items()
        if (count := _total(target, "failed"))
    ]


def cell(target: Mapping[str, Any], line: Line, is_baseline: bool, spread: bool = True) -> str:
    """What a target's column says in a line: the median and the ratio, each with its spread if asked for."""
    of_rounds = target["spread"].get(line.key)
    if of_rounds is None:
        return ""
    spread = spread and len(target["rounds"]) > 1
    text = _number(of_rounds["median"] * line.factor)
    if spread:
        text += f" ({_number(of_rounds['least'] * line.factor)} to {_number(of_rounds['most'] * line.factor)})"
    ratio = target["ratio"].get(line.key)
    if ratio is not None and not is_baseline:
        text += f"  {ratio['median']:.2f}x"
        if spread:
            text += f" ({ratio['least']:.2f} to {ratio['most']:.2f})"
    return text


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _total(target: Mapping[str, Any], key: str) -> int:
    kinds = (document["all"][kind] for document in target["rounds"] for kind in ("embed", "generate", "query"))
    return sum(kind[key] for kind in kinds if kind is not None)


def _first_error(target: Mapping[str, Any]) -> str:
    return next(document["all"]["first_error"] for document in target["rounds"] if document["all"]["first_error"])
