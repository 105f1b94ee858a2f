"""What is told of a call: once, at its end, as much as is true, and never more than fits a line."""

import io
import json
import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orthrus_backend.observability import journal as journal_module
from orthrus_backend.observability.entry import ID_LENGTH, Entry, Record
from orthrus_backend.observability.journal import Journal
from orthrus_backend.observability.request_log import RequestLog
from orthrus_backend.observability.spans import Spans
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Outcome, Request

MODELS = {Kind.EMBED: "a/embedder", Kind.GENERATE: "a/generator"}
PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def generation(outcome: Outcome | None, produced: int = 3, prompt: int = 5) -> GenerateRequest:
    now = time.monotonic()
    adapter = SimpleNamespace(name="formal")
    request = GenerateRequest("", list(range(prompt + produced)), adapter, now, prompt_length=prompt)
    request.outcome = outcome
    request.first_scheduled, request.first_token_at = now + 1, now + 2
    return request


def embedding(outcome: Outcome | None, length: int = 5) -> EmbedRequest:
    request = EmbedRequest("", list(range(length)), None, time.monotonic())
    request.outcome = outcome
    return request


def record(*requests: Request, error: str = "", **known: Any) -> Record:
    """What is told of a call that became these requests."""
    told: list[Record] = []
    entry = Entry(told.append)
    for name, value in known.items():
        setattr(entry, name, value)
    entry.became(requests)
    entry.close(error)
    entry.close(error)
    (only,) = told
    return only


def line(told: Record) -> dict[str, Any]:
    stream = io.StringIO()
    RequestLog(stream, MODELS).tell(told)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().isascii()
    assert stream.getvalue().removesuffix("\n").isprintable()
    fields: dict[str, Any] = json.loads(stream.getvalue())
    return fields


@pytest.mark.parametrize(
    ("outcomes", "error", "end"),
    [
        ([Outcome.STOP, Outcome.LENGTH], "", "finished"),
        ([Outcome.LENGTH, Outcome.CANCELLED], "", "cancelled"),
        ([Outcome.CANCELLED, Outcome.TIMEOUT], "", "timeout"),
        ([Outcome.STOP, Outcome.FAILED, Outcome.TIMEOUT], "UNAVAILABLE", "failed"),
        ([Outcome.STOP], "INTERNAL", "failed"),  # its answer could not be sent
        ([], "INVALID_ARG", "refused"),
        ([], "UNAVAILABLE", "refused"),
        ([], "INTERNAL", "failed"),
    ],
)
def test_a_call_ends_as_the_worst_of_its_requests(outcomes: list[Outcome], error: str, end: str) -> None:
    assert record(*map(generation, outcomes), error=error).end == end


def test_what_the_engine_did_not_get_was_refused() -> None:
    told: list[Record] = []
    entry = Entry(told.append)

    def submit() -> None:
        with entry.intake():
            entry.became([generation(None)])
            raise ValueError("too long")

    with pytest.raises(ValueError, match="too long"):
        submit()
    entry.close("INVALID_ARG")
    assert (told[0].end, told[0].requests, told[0].input_tokens) == ("refused", 0, 0)


def test_a_line_tells_a_call_of_several_continuations() -> None:
    fields = line(record(generation(Outcome.STOP, 3), generation(Outcome.LENGTH, 4), id="q-7", parent=PARENT))
    assert fields.pop("time").endswith("+00:00")
    assert fields.pop("queue_seconds") == pytest.approx(1, abs=0.1)
    assert fields.pop("first_token_seconds") == pytest.approx(2, abs=0.1)
    assert fields.pop("total_seconds") == pytest.approx(0, abs=0.1)
    assert fields == {
        "id": "q-7",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "kind": "generate",
        "model": "a/generator",
        "adapter": "formal",
        "requests": 2,
        "input_tokens": 5,
        "output_tokens": 7,
        "outcome": "finished",
        "error": None,
    }


def test_a_line_tells_a_call_of_several_texts() -> None:
    told = record(embedding(Outcome.EMBEDDED, 5), embedding(Outcome.EMBEDDED, 7), kind=Kind.EMBED)
    fields = line(told)
    assert (fields["model"], fields["requests"], fields["input_tokens"]) == ("a/embedder", 2, 12)
    assert fields["first_token_seconds"] is None


@pytest.mark.parametrize("name", ['"}\n{"id": "forged', "\x1b[2J", "\u2028", "\ud800", "é" * 10_000, "\0"])
def test_an_id_cannot_break_out_of_its_line(name: str) -> None:
    assert line(record(id=name, error="INVALID_ARG"))["id"] == name[:ID_LENGTH]


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "g" * 32, "\n" * 100])
def test_a_broken_trace_context_is_none(parent: str) -> None:
    told = record(generation(Outcome.STOP), parent={"traceparent": parent})
    assert line(told)["trace_id"] is None
    assert spans(told) == []


class Slow:
    """A teller that waits for leave."""

    def __init__(self) -> None:
        self.leave = threading.Event()
        self.told: list[Record] = []
        self.closed = False

    def tell(self, told: Record) -> None:
        assert self.leave.wait(20)
        self.told.append(told)
        if told.id == "bad":
            raise BrokenPipeError("nobody reads")

    def close(self) -> None:
        self.closed = True


def test_a_slow_reader_delays_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(journal_module, "CAPACITY", 3)
    slow = Slow()
    journal = Journal([slow])
    before = time.monotonic()
    for _ in range(100):
        journal.put(record(generation(Outcome.STOP)))
    assert time.monotonic() - before < 1
    slow.leave.set()
    deadline = time.monotonic() + 10
    while len(slow.told) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    journal.close()
    assert 3 <= len(slow.told) <= 4
    assert slow.closed
    assert f"{100 - len(slow.told)} calls so far could not be told of" in caplog.text


def test_a_reader_that_hangs_does_not_hang_the_end() -> None:
    journal = Journal([Slow()])
    journal.put(record(generation(Outcome.STOP)))
    before = time.monotonic()
    journal.close()
    assert time.monotonic() - before < 2 * journal_module.CLOSE_SECONDS


def test_a_teller_that_fails_is_asked_again_and_the_others_too() -> None:
    first, second = Slow(), Slow()
    first.leave.set()
    second.leave.set()
    journal = Journal([first, second])
    for name in ("bad", "good"):
        journal.put(record(generation(Outcome.STOP), id=name))
    journal.close()
    assert [told.id for told in first.told] == [told.id for told in second.told] == ["bad", "good"]


def spans(told: Record) -> list[Any]:
    exporter = InMemorySpanExporter()
    teller = Spans(MODELS, exporter)
    teller.tell(told)
    teller.close()
    return list(exporter.get_finished_spans())


def test_a_call_without_a_sampled_trace_leaves_no_span() -> None:
    unsampled = {"traceparent": PARENT["traceparent"][:-1] + "0"}
    assert spans(record(generation(Outcome.STOP))) == []
    assert spans(record(generation(Outcome.STOP), parent=unsampled)) == []


def test_stages_follow_each_other_and_fill_the_call() -> None:
    *stages, whole = spans(record(generation(Outcome.STOP), parent=PARENT))
    assert [stage.name for stage in stages] == ["queue", "prefill", "decode"]
    assert [s.start_time for s in stages] == [whole.start_time, *(s.end_time for s in stages[:-1])]
    assert stages[-1].end_time == whole.end_time
    assert all(stage.parent.span_id == whole.context.span_id for stage in stages)


@pytest.mark.parametrize(
    ("requests", "known", "names"),
    [
        ([embedding(Outcome.EMBEDDED)], {"kind": Kind.EMBED}, ["queue", "embeddings a/embedder"]),
        ([generation(Outcome.STOP)], {"chat": True}, ["queue", "prefill", "decode", "chat a/generator"]),
        ([], {"error": "INVALID_ARG"}, ["text_completion a/generator"]),
    ],
)
def test_spans_are_named_after_the_operation(requests: list[Request], known: dict[str, Any], names: list[str]) -> None:
    told: queue.SimpleQueue[Record] = queue.SimpleQueue()
    entry = Entry(told.put)
    entry.parent, entry.kind = PARENT, known.get("kind", Kind.GENERATE)
    entry.became(requests, chat=known.get("chat", False))
    entry.close(known.get("error", ""))
    finished = spans(told.get())
    assert [span.name for span in finished] == names
    assert finished[-1].attributes.get("error.type") == known.get("error")
    assert finished[-1].status.is_ok is not ("error" in known)
