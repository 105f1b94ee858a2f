"""Medians, ratios of the same round, and what is compared with what."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.comparison import compare, numbers, ratios
from loadtest.measure import Run
from loadtest.plots import plot, tradeoff
from loadtest.records import Kind, Outcome, PhaseRun, Record, Window
from loadtest.report import faults, table
from loadtest.scenario import read_scenario
from loadtest.usage import Usage

SCENARIO = read_scenario("mix-50-50")


def run(label: str, embeddings: int, lasting: float = 0.5, failed: int = 0) -> Run:
    """A round of ten seconds with so many embeddings."""
    records = [Record(Kind.EMBED, 1.0, 1.0, end=1.0 + lasting, outcome=Outcome.OK) for _ in range(embeddings)]
    records += [Record(Kind.EMBED, 1.0, 1.0, outcome=Outcome.FAILED, error="Error: no") for _ in range(failed)]
    usage = Usage(seconds=10.0, cpu_seconds=15.0, driver_cpu_seconds=1.0, peak_pss=100 << 20)
    return Run(SCENARIO, label, 3.0, [PhaseRun("", Window(0.0, 10.0), records)], usage, {"made": "by hand"})


def rounds(label: str, *embeddings: int, lasting: float = 0.5) -> Sequence[Run]:
    return [run(label, count, lasting) for count in embeddings]


def test_numbers_are_named_by_their_path() -> None:
    document = {"all": {"requests": 2.0, "embed": {"e2e": {"p99": 1}}, "query": None}, "usage": {"peak_pss": 5}}
    assert numbers(document) == {"requests": 2.0, "embed.e2e.p99": 1.0, "usage.peak_pss": 5.0}


def test_a_ratio_is_that_of_the_same_round() -> None:
    own, base = (
        [{"requests": 10.0}, {"requests": 30.0}, {"requests": 22.0}],
        [{"requests": x} for x in (5.0, 10.0, 20.0)],
    )
    (spread,) = ratios(own, base).values()
    assert (spread.median, spread.least, spread.most) == (2.0, 1.1, 3.0)


def test_the_baseline_is_the_fastest_of_the_others() -> None:
    runs = {"a": rounds("a", 90, 100, 80), "b": rounds("b", 40, 50, 45), "c": rounds("c", 60, 50, 55, lasting=2.0)}
    result = compare(runs, None)
    assert result["baseline"] == "c"
    own = result["targets"]["a"]
    assert own["spread"]["requests"] == {"median": 9.0, "least": 8.0, "most": 10.0}
    assert own["ratio"]["requests"] == {"median": 1.5, "least": pytest.approx(80 / 55), "most": 2.0}
    assert own["ratio"]["embed.e2e.p99"]["median"] == pytest.approx(0.25)
    assert own["ratio"]["usage.peak_pss"]["median"] == 1.0
    assert compare(runs, "b")["targets"]["c"]["ratio"]["requests"]["median"] == pytest.approx(55 / 45)


def test_three_targets_are_drawn_as_a_trade_off(tmp_path: Path) -> None:
    runs = {"a": rounds("a", 90, 100, 80), "b": rounds("b", 40, 50, 45, lasting=1.5), "c": rounds("c", 60, 50, 55)}
    files = plot(runs, compare(runs, None), tmp_path)
    assert {file.name for file in files} == {
        f"mix-50-50{part}.{form}" for part in ("", "-tradeoff") for form in ("png", "svg")
    }
    tokens, embeddings = tradeoff(compare(runs, None)).axes
    assert not tokens.containers, "nothing was generated"
    assert [point.lines[0].get_xydata().tolist() for point in embeddings.containers] == [
        [[0.5, 9.0]],
        [[1.5, 4.5]],
        [[0.5, 5.5]],
    ]
    del runs["c"]
    assert not [file for file in plot(runs, compare(runs, None), tmp_path) if "tradeoff" in file.name]


def test_a_single_target_has_no_ratios() -> None:
    result = compare({"a": [run("a", 10)]}, None)
    assert result["baseline"] is None
    assert result["targets"]["a"]["ratio"] == {}


def test_the_table_shows_medians_spreads_ratios_and_failures() -> None:
    runs = {"a": rounds("a", 90, 100, 80), "b": [run("b", 40), run("b", 50, failed=2), run("b", 45)]}
    result = compare(runs, None)
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    console.print(table(result))
    text = console.export_text()
    assert "9 (8 to 10)  2.00x (1.78 to 2.25)" in text
    assert "4.5 (4 to 5)" in text
    assert "peak memory (PSS) [MiB]" in text
    assert faults(result) == ["b: 2 requests failed, the first with Error: no"]
