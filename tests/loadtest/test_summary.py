"""Numbers from records that were made by hand, against numpy and against counting on fingers."""

import numpy as np
import pytest

from loadtest.records import Kind, Outcome, PhaseRun, Record, Window
from loadtest.scenario import Slo
from loadtest.summary import KindSummary, Summary, Times, summarise

SLO = Slo(ttft=1.0, tpot=0.1, embed=0.5, query=5.0)


def embedding(due: float, end: float | None, outcome: Outcome = Outcome.OK) -> Record:
    return Record(Kind.EMBED, due, due, end=end, tokens_in=128, outcome=outcome)


def generation(due: float, times: list[float], outcome: Outcome = Outcome.OK, tokens: int = 1) -> Record:
    end = times[-1] if outcome is Outcome.OK else None
    record = Record(Kind.GENERATE, due, due + 0.1, end=end, tokens_in=128, outcome=outcome)
    for time in times:
        record.add(time, tokens)
    return record


def phase(*records: Record, start: float = 10.0, end: float = 20.0) -> PhaseRun:
    return PhaseRun("p", Window(start, end), records)


def of(summary: Summary, kind: str) -> KindSummary:
    part = getattr(summary, kind)
    assert isinstance(part, KindSummary)
    return part


def test_percentiles_are_numpys() -> None:
    draw = np.random.default_rng(0)
    lasting = draw.exponential(1.0, 300)
    summary = summarise("", [phase(*(embedding(12.0, 12.0 + s) for s in lasting), end=99.0)], SLO)
    times = of(summary, "embed").e2e
    assert times is not None
    assert times.count == 300
    assert times.mean == pytest.approx(lasting.mean())
    assert (times.p50, times.p95, times.p99) == pytest.approx(tuple(np.percentile(lasting, [50, 95, 99])))
    assert of(summary, "embed").goodput == pytest.approx((lasting <= 0.5).sum() / 89)
    assert summary.generate is None
    assert summary.query is None


def test_only_what_is_answered_inside_the_window_counts() -> None:
    records = [
        embedding(8.0, 9.9),  # in the warm-up
        embedding(9.0, 10.0),  # sent in the warm-up, answered in the window
        embedding(19.0, 20.0),
        embedding(19.0, 20.1),  # too late
        embedding(19.0, None, Outcome.UNFINISHED),
        embedding(12.0, 12.5, Outcome.FAILED),
    ]
    part = of(summarise("", [phase(*records)], SLO), "embed")
    assert (part.answered, part.failed, part.unfinished) == (2, 1, 2)
    assert part.requests == pytest.approx(2 / 10)
    assert part.tokens_in == pytest.approx(256 / 10)


def test_times_of_a_stream() -> None:
    """The first token 0.5 s after it was due, then gaps of 0.1, 0.2 and 0.3 s."""
    part = of(summarise("", [phase(generation(11.0, [11.5, 11.6, 11.8, 12.1]))], SLO), "generate")
    assert part.ttft is not None
    assert part.ttft.p50 == pytest.approx(0.5)
    assert part.tpot is not None
    assert part.tpot.p50 == pytest.approx(0.2)
    assert part.inter_token is not None
    assert part.inter_token.count == 3
    assert part.inter_token.p50 == pytest.approx(0.2)
    assert part.e2e is not None
    assert part.e2e.p50 == pytest.approx(1.1)
    assert part.tokens_out == pytest.approx(4 / 10)


def test_several_tokens_at_once_are_counted_as_such() -> None:
    part = of(summarise("", [phase(generation(11.0, [11.5, 12.1], tokens=3))], SLO), "generate")
    assert part.tpot == Times(1, *[pytest.approx(0.2)] * 4)
    assert part.inter_token == Times(1, *[pytest.approx(0.6)] * 4)
    assert part.tokens_out == pytest.approx(6 / 10)


def test_tokens_count_when_they_came_also_of_what_was_given_up() -> None:
    times = [9.0, 10.5, 19.5]
    part = of(summarise("", [phase(generation(8.0, times, Outcome.UNFINISHED))], SLO), "generate")
    assert (part.answered, part.unfinished) == (0, 1)
    assert part.tokens_out == pytest.approx(2 / 10)
    assert part.e2e is part.ttft is part.tpot is None


@pytest.mark.parametrize(
    ("times", "good"),
    [
        ([12.0, 12.1, 12.2], 1),  # both just met
        ([12.1, 12.2, 12.3], 0),  # the first token comes late
        ([11.5, 11.7, 11.9], 0),  # the others come slowly
        ([11.5], 1),
    ],
)
def test_goodput_needs_both_objectives_of_a_generation(times: list[float], good: int) -> None:
    slo = SLO.model_copy(update={"ttft": 1.0 + 1e-9, "tpot": 0.1 + 1e-9})
    summary = summarise("", [phase(generation(11.0, times))], slo)
    assert of(summary, "generate").goodput * 10 == pytest.approx(good)
    assert summary.goodput * 10 == pytest.approx(good)


def test_questions_are_measured_beside_their_requests() -> None:
    question = Record(Kind.QUERY, 11.0, 11.0, end=15.0, outcome=Outcome.OK)
    summary = summarise("", [phase(question, embedding(11.0, 11.2), generation(11.2, [12.0, 15.0]))], SLO)
    part = of(summary, "query")
    assert (part.requests, part.goodput) == (pytest.approx(0.1), pytest.approx(0.1))
    assert part.e2e is not None
    assert part.e2e.p99 == pytest.approx(4.0)
    assert summary.requests == pytest.approx(0.2)


def test_phases_together_have_windows_of_their_own() -> None:
    first = phase(embedding(11.0, 11.5), embedding(20.5, 20.6))
    second = phase(embedding(31.0, 31.5), embedding(31.0, 31.7), start=30.0, end=35.0)
    both = summarise("all", [first, second], SLO)
    assert both.seconds == 15.0
    assert of(both, "embed").answered == 3
    assert both.requests == pytest.approx(3 / 15)


def test_the_first_error_is_told() -> None:
    failed = embedding(12.0, 12.5, Outcome.FAILED)
    failed.error = "ValueError: no"
    assert summarise("", [phase(embedding(11.0, 11.1), failed)], SLO).first_error == "ValueError: no"
