"""Scenarios as they are written: those that are shipped, what is refused and in which words, and smaller ones."""

import tomllib
from pathlib import Path

import pytest

from loadtest.measure import kinds_of
from loadtest.records import Kind
from loadtest.scenario import FOLDER, Mix, Retrieval, names, read_scenario

GOOD = """
description = "d"
slo = {ttft = 1.0, tpot = 0.1, embed = 1.0}
[[phases]]
seconds = 10
warmup = 2
[[phases.streams]]
arrivals = {kind = "closed", clients = 4}
work = {kind = "mix", embed_share = 0.5}
"""


def test_every_shipped_scenario_can_be_read_and_the_readme_says_where_they_are() -> None:
    assert {"embed-only", "mix-50-50", "iter-retgen"} <= set(names())
    for name in names():
        assert read_scenario(name).name == name
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text(encoding="utf-8")
    assert "python -m loadtest list" in readme


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("clients = 4", "clients = 0"), r"clients: .*greater than or equal to 1 \(got 0\)"),
        (("clients = 4", "client = 4"), "unknown key '.*client'"),
        (("embed_share = 0.5", "embed_share = 1.5"), r"embed_share: .*less than or equal to 1 \(got 1.5\)"),
        (("embed_share = 0.5", "embed_share = 0.5, output_tokens = [9, 3]"), "the least, 9, is above the most, 3"),
        (('"closed", clients = 4', '"poisson", rate = -1'), r"rate: .*greater than 0 \(got -1\)"),
        (('"closed", clients = 4', '"sometimes"'), "'sometimes'"),
        (('"closed", clients = 4', '"burst"'), "a burst needs `requests`"),
        (("seconds = 10", ""), "it would never end"),
        (("warmup = 2", "warmup = 10"), "warmup 10 leaves nothing of seconds 10"),
        (("ttft = 1.0, ", ""), "slo.ttft: Field required"),
        (("description", "description ="), "Invalid"),
    ],
)
def test_what_cannot_be_is_refused_with_name_value_and_limit(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(GOOD)
    assert read_scenario(str(file)).name == "own"
    file.write_text(GOOD.replace(*change))
    with pytest.raises(ValueError, match=message):
        read_scenario(str(file))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown scenario 'mix'.*mix-50-50"):
        read_scenario("mix")


def test_scaling_and_lasting_change_counts_and_times_only() -> None:
    scenario = read_scenario("long-decode").scaled(0.125).lasting(14)
    assert [phase.seconds for phase in scenario.phases] == [14] * 4
    assert [phase.warmup for phase in scenario.phases] == [1.0] * 4  # 20 of 280
    outputs = [s.work.output_tokens for p in scenario.phases for s in p.streams[:1] if isinstance(s.work, Mix)]
    assert outputs == [32, 64, 128, 256]
    closed, poisson = (stream.arrivals for stream in scenario.phases[0].streams)
    assert closed.model_dump() == {"kind": "closed", "clients": 4}
    assert poisson.model_dump() == {"kind": "poisson", "rate": 0.5}
    small = read_scenario("iter-retgen").scaled(0.1).phases[0].streams[0]
    assert isinstance(small.work, Retrieval)
    assert (small.requests, small.work.rounds, small.work.documents) == (10, 3, (1, 1))


@pytest.mark.parametrize("change", ["scaled", "lasting"])
def test_nothing_is_scaled_to_nothing(change: str) -> None:
    with pytest.raises(ValueError, match="is not above 0"):
        getattr(read_scenario("burst"), change)(0)


def test_what_a_scenario_needs_of_a_target() -> None:
    assert kinds_of(read_scenario("embed-only")) == {Kind.EMBED}
    assert kinds_of(read_scenario("generate-only")) == {Kind.GENERATE}
    assert kinds_of(read_scenario("burst")) == kinds_of(read_scenario("iter-retgen")) == {Kind.EMBED, Kind.GENERATE}


def test_scenarios_hold_what_the_comparison_is_about() -> None:
    """The paper's workloads: 128-token inputs, 128 outputs, and shares as in the name."""
    for name in ("mix-90-10", "mix-50-50", "mix-10-90"):
        document = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        (stream,) = document["phases"][0]["streams"]
        assert stream["arrivals"] == {"kind": "closed", "clients": 32}
        assert stream["work"]["embed_share"] == int(name.split("-")[1]) / 100
        assert {stream["work"][f"{what}_tokens"] for what in ("embed", "prompt", "output")} == {128}
        assert document["phases"][0]["seconds"] - document["phases"][0]["warmup"] == 60
