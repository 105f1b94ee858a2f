"""The driver against a real engine with a tiny model: closed and open loop, bursts, retrieval, ends and failures."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from loadtest.driver import BrokenTargetError, drive, warm_up
from loadtest.records import Kind, Outcome, PhaseRun, Record
from loadtest.scenario import Scenario
from loadtest.targets.orthrus_engine import OrthrusEngine
from loadtest.targets.target import Settings
from loadtest.workload import Vocabulary

MIX = {"kind": "mix", "embed_share": 0.5, "embed_tokens": 20, "prompt_tokens": [10, 20], "output_tokens": 8}


def scenario(*streams: Mapping[str, Any], **phase: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "test",
            "description": "",
            "slo": {"ttft": 1, "tpot": 1, "embed": 1},
            "phases": [{"streams": streams, **phase}],
        }
    )


def driven(asked: Scenario, settings: Settings, vocabulary: Vocabulary, seed: int = 0) -> PhaseRun:
    async def run() -> PhaseRun:
        target = OrthrusEngine(settings, {})
        await target.start()
        try:
            await warm_up(target, vocabulary, settings.max_model_len)
            return (await drive(target, asked, vocabulary, seed))[0]
        finally:
            await target.stop()

    return asyncio.run(run())


def of(run: PhaseRun, kind: Kind) -> list[Record]:
    return [record for record in run.records if record.kind is kind]


def most_at_once(records: list[Record]) -> int:
    """How many requests ran at the same time, at most."""
    starts = [(record.sent, 1) for record in records]
    ends = [(record.end, -1) for record in records if record.end is not None]
    running = most = 0
    for _, change in sorted(starts + ends):
        running += change
        most = max(most, running)
    return most


def test_closed_loop(settings: Settings, vocabulary: Vocabulary) -> None:
    clients = {"arrivals": {"kind": "closed", "clients": 3}, "requests": 40, "work": MIX}
    run = driven(scenario(clients), settings, vocabulary)
    assert {record.outcome for record in run.records} == {Outcome.OK}
    assert (len(of(run, Kind.EMBED)), len(of(run, Kind.GENERATE))) == (20, 20)
    assert most_at_once(list(run.records)) == 3
    for record in of(run, Kind.GENERATE):
        times = list(record.times)
        assert record.tokens_out == 8
        assert 10 <= record.tokens_in <= 20
        assert record.end is not None
        assert record.sent <= times[0] <= times[-1] <= record.end <= run.window.end
        assert times == sorted(times)
    assert {record.tokens_in for record in of(run, Kind.EMBED)} == {20}
    assert all(abs(record.sent - record.due) < 0.1 for record in run.records)


def test_open_loop_waits_for_no_answer(settings: Settings, vocabulary: Vocabulary) -> None:
    """Forty requests in about a tenth of a second, far more than are answered in that time."""
    flood = {"arrivals": {"kind": "poisson", "rate": 400.0}, "requests": 40, "work": {**MIX, "embed_share": 0.0}}
    run = driven(scenario(flood), settings, vocabulary)
    assert {record.outcome for record in run.records} == {Outcome.OK}
    due = [record.due for record in run.records]
    assert due == sorted(due)
    assert 0.03 < due[-1] - due[0] < 0.3
    assert most_at_once(list(run.records)) > settings.max_running
    assert all(record.sent >= record.due for record in run.records)


def test_the_phase_ends_in_time_and_gives_up_what_runs(settings: Settings, vocabulary: Vocabulary) -> None:
    work = {**MIX, "embed_share": 0.2, "output_tokens": 100}
    endless = {"arrivals": {"kind": "closed", "clients": 6}, "work": work}
    run = driven(scenario(endless, seconds=0.8, warmup=0.2), settings, vocabulary)
    assert run.window.seconds == pytest.approx(0.6, abs=0.2)
    given_up = [record for record in run.records if record.outcome is Outcome.UNFINISHED]
    assert 1 <= len(given_up) <= 6
    assert all(record.end is None for record in given_up)
    assert not [record for record in run.records if record.outcome is Outcome.FAILED]


def test_a_burst_comes_at_once_and_in_order(settings: Settings, vocabulary: Vocabulary) -> None:
    generations = {"arrivals": {"kind": "burst"}, "requests": 12, "work": {**MIX, "embed_share": 0.0}}
    embeddings = {"arrivals": {"kind": "burst"}, "requests": 12, "work": {**MIX, "embed_share": 1.0}}
    run = driven(scenario(generations, embeddings), settings, vocabulary)
    assert {record.outcome for record in run.records} == {Outcome.OK}
    assert len({record.due for record in run.records}) == 1
    sent = sorted(run.records, key=lambda record: record.sent)
    assert [record.kind for record in sent] == [Kind.GENERATE] * 12 + [Kind.EMBED] * 12
    assert run.window.end == max(record.end for record in run.records if record.end is not None)


def test_retrieval_alternates_and_embeds_what_was_written(settings: Settings, vocabulary: Vocabulary) -> None:
    work = {
        "kind": "retrieval",
        "rounds": 3,
        "question_tokens": [5, 8],
        "documents": [1, 3],
        "document_tokens": 10,
        "output_tokens": 12,
        "instruction_tokens": 4,
    }
    run = driven(
        scenario({"arrivals": {"kind": "closed", "clients": 1}, "requests": 4, "work": work}), settings, vocabulary
    )
    assert {record.outcome for record in run.records} == {Outcome.OK}
    assert [len(of(run, kind)) for kind in Kind] == [12, 12, 4]
    steps = sorted(run.records, key=lambda record: record.sent)
    round_of = [Kind.EMBED, Kind.GENERATE]
    assert [record.kind for record in steps] == [Kind.QUERY, *round_of * 3] * 4
    for start in range(0, len(steps), 7):
        question, *parts = steps[start : start + 7]
        assert question.end is not None
        assert question.end >= max(part.end for part in parts if part.end is not None)
        embedded = [part.tokens_in for part in parts[::2]]
        assert 5 <= embedded[0] <= 8
        # Words are tokens here; special ones that were generated are not in the text.
        assert all(embedded[0] + 12 - 4 <= tokens <= embedded[0] + 12 for tokens in embedded[1:])
        for part in parts[1::2]:
            assert part.tokens_in in {embedded[0] + 4 + 10 * documents for documents in (1, 2, 3)}


def test_a_target_that_refuses_everything_is_no_measurement(settings: Settings, vocabulary: Vocabulary) -> None:
    too_long = {**MIX, "prompt_tokens": 100, "embed_share": 0.0, "output_tokens": 100}
    clients = {"arrivals": {"kind": "closed", "clients": 30}, "work": too_long}
    with pytest.raises(BrokenTargetError, match=r"50 requests in a row failed.*exceed the model's limit of 128 tokens"):
        driven(scenario(clients, seconds=30), settings, vocabulary)


def test_a_target_that_counts_otherwise_is_no_measurement(settings: Settings, vocabulary: Vocabulary) -> None:
    """As one would that has another tokenizer than the workload."""
    other = Vocabulary.__new__(Vocabulary)
    other.special, other._words = 0, ["w20"] * 50  # without the BOS that the model's own tokenizer adds
    clients = {"arrivals": {"kind": "closed", "clients": 2}, "work": {**MIX, "embed_share": 1.0}}

    async def run() -> None:
        target = OrthrusEngine(replace(settings), {})
        await target.start()
        try:
            await drive(target, scenario(clients, seconds=30), other, 0)
        finally:
            await target.stop()

    with pytest.raises(BrokenTargetError, match="a text of 20 tokens has 21 as the target counts them"):
        asyncio.run(run())
