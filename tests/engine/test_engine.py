"""The engine's threads: everything accepted is answered, whatever happens to the request, a step or the engine."""

import threading
import time
from collections.abc import Callable

import pytest

from orthrus_backend.engine import Engine, EngineClosedError
from orthrus_backend.outputs import Ended, Output, StepResult
from orthrus_backend.plan import Plan
from orthrus_backend.request import Outcome, Request
from tests.engine.tiny import Bench, backbone, embed, generate, random_ids


class Inbox:
    """A receiver that notes what it gets and can say that it has gone."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.done = threading.Event()
        self.gone = False
        self.aborted = ""

    def deliver(self, output: Output) -> None:
        assert not self.done.is_set(), "an output after the last one"
        self.outputs.append(output)
        if output.final:
            self.done.set()

    def abort(self, message: str) -> None:
        self.aborted = message

    def cancelled(self) -> bool:
        assert not self.done.is_set(), "asked after the last output"
        return self.gone

    def outcome(self) -> Outcome | None:
        assert self.done.wait(20), "no answer came"
        return self.outputs[-1].request.outcome


class Faulty:
    """The real runner, but for what a test does before each step."""

    def __init__(self, bench: Bench, before: Callable[[int], None] = lambda step: None) -> None:
        self._runner = bench.runner
        self._before = before
        self.steps = 0

    def run(self, plan: Plan) -> StepResult:
        self.steps += 1
        self._before(self.steps)
        return self._runner.run(plan)


def started(before: Callable[[int], None] = lambda step: None, **settings: object) -> tuple[Engine, Bench]:
    bench = Bench(backbone(), **settings)
    return Engine(bench.scheduler, Faulty(bench, before)), bench


def send(engine: Engine, *requests: Request) -> list[Inbox]:
    for request in requests:
        request.reply = Inbox()
        request.arrival = time.monotonic()
    engine.submit(requests)
    return [request.reply for request in requests]


def totals(engine: Engine) -> tuple[float, float]:
    counters = engine.metrics.counters.items()
    received = sum(value for (name, _), value in counters if name == "orthrus_requests_received_total")
    ended = sum(value for (name, _), value in counters if name == "orthrus_requests_total")
    return received, ended


def test_both_kinds_are_answered_and_the_books_balance() -> None:
    engine, bench = started()
    inboxes = send(
        engine, *[embed(random_ids(30, n)) for n in range(8)], *[generate(random_ids(9, n)) for n in range(8)]
    )
    assert {inbox.outcome() for inbox in inboxes} == {Outcome.EMBEDDED, Outcome.LENGTH}
    engine.close()
    assert totals(engine) == (16, 16)
    gauges = engine.metrics.gauges
    assert all(value == 0 for (name, _), value in gauges.items() if "requests_" in name or "queue" in name)
    assert bench.scheduler.pool.used == 0


def test_a_failed_step_answers_everything_and_closes_the_engine() -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise RuntimeError("no memory left")

    engine, _ = started(fail, token_budget=20, max_running=2)
    inboxes = send(engine, *[generate(random_ids(9, n), 50) for n in range(6)], embed(random_ids(300, 1)))
    assert {inbox.outcome() for inbox in inboxes} == {Outcome.FAILED}
    ended = inboxes[0].outputs[-1]
    assert isinstance(ended, Ended)
    assert "no memory left" in ended.message
    assert not engine.alive
    with pytest.raises(EngineClosedError, match="has failed"):
        send(engine, embed(random_ids(3, 1)))
    engine.close()
    assert totals(engine) == (7, 7)


def test_cancelling_answers_once_and_frees_everything() -> None:
    engine, bench = started(lambda step: time.sleep(0.01))
    long, other = generate(random_ids(9, 1), 400), generate(random_ids(9, 2), 5)
    inbox, kept = send(engine, long, other)
    while not inbox.outputs:
        time.sleep(0.005)
    engine.cancel(long)
    engine.cancel(long)
    assert inbox.outcome() is Outcome.CANCELLED
    assert kept.outcome() is Outcome.LENGTH
    engine.close()
    assert bench.scheduler.pool.used == 0


def test_a_cancel_in_the_step_that_finishes_comes_too_late() -> None:
    requests = [generate(random_ids(9, 1), 2), embed(random_ids(75, 2))]  # two steps each

    def cancel(step: int) -> None:
        if step == 2:
            for request in [*requests, *requests]:
                engine.cancel(request)

    engine, bench = started(cancel)
    inboxes = send(engine, *requests)
    assert [inbox.outcome() for inbox in inboxes] == [Outcome.LENGTH, Outcome.EMBEDDED]
    engine.close()
    assert [inbox.aborted for inbox in inboxes] == ["", ""]
    assert totals(engine) == (2, 2)
    assert bench.scheduler.pool.used == 0


def test_live_cached_and_free_blocks_are_reported_apart() -> None:
    seen = []

    def look(step: int) -> None:
        gauges = engine.metrics.gauges
        seen.append([gauges["orthrus_kv_blocks", (("state", state),)] for state in ("used", "cached", "free")])

    engine, _ = started(look, num_blocks=8)
    (inbox,) = send(engine, generate(random_ids(20, 1), 5))  # two blocks of 16 from first to last
    assert inbox.outcome() is Outcome.LENGTH
    engine.close()
    look(6)
    assert seen == [[0, 0, 8], *[[2, 0, 6]] * 4, [0, 1, 7]]  # the first block is full


def test_a_receiver_that_has_gone_cancels_its_request() -> None:
    engine, bench = started(lambda step: time.sleep(0.01))
    (inbox,) = send(engine, generate(random_ids(9, 1), 400))
    inbox.gone = True
    assert inbox.outcome() is Outcome.CANCELLED
    assert bench.scheduler.pool.used == 0
    engine.close()


def test_cancel_by_id_ends_all_that_carry_it() -> None:
    engine, _ = started(lambda step: time.sleep(0.01))
    requests = [generate(random_ids(9, n), 400) for n in range(3)]
    for request, name in zip(requests, ("a", "a", "b"), strict=True):
        request.id = name
    inboxes = send(engine, *requests)
    engine.cancel_id("a")
    assert [inbox.outcome() for inbox in inboxes[:2]] == [Outcome.CANCELLED] * 2
    assert requests[2].outcome is None
    engine.close()
    assert inboxes[2].outcome() is Outcome.FAILED


def test_a_deadline_ends_a_request() -> None:
    engine, _ = started(lambda step: time.sleep(0.01))
    request = generate(random_ids(9, 1), 400)
    request.deadline = time.monotonic() + 0.1
    assert send(engine, request)[0].outcome() is Outcome.TIMEOUT
    engine.close()


def test_closing_lets_running_work_finish() -> None:
    engine, _ = started()
    inboxes = send(engine, *[generate(random_ids(9, n), 20) for n in range(4)])
    engine.close(timeout=20)
    assert {inbox.outcome() for inbox in inboxes} == {Outcome.LENGTH}
    with pytest.raises(EngineClosedError, match="shutting down"):
        send(engine, embed(random_ids(3, 1)))


def test_a_receiver_that_raises_ends_only_its_own_request() -> None:
    engine, bench = started(lambda step: time.sleep(0.01))
    bad, good = generate(random_ids(9, 1), 400), generate(random_ids(9, 2), 30)
    inboxes = send(engine, bad, good)

    def deliver(output: Output) -> None:
        raise BrokenPipeError("the client went away")

    bad.reply.deliver = deliver
    assert inboxes[1].outcome() is Outcome.LENGTH
    engine.close()
    assert "the client went away" in inboxes[0].aborted
    assert bad.outcome is Outcome.CANCELLED
    assert bench.scheduler.pool.used == 0


def test_a_receiver_that_cannot_be_asked_ends_only_its_own_request() -> None:
    engine, _ = started(lambda step: time.sleep(0.01))
    bad, good = generate(random_ids(9, 1), 400), generate(random_ids(9, 2), 30)
    inboxes = send(engine, bad, good)

    def cancelled() -> bool:
        raise BrokenPipeError("the client went away")

    bad.reply.cancelled = cancelled
    assert inboxes[0].outcome() is Outcome.CANCELLED
    assert "the client went away" in inboxes[0].aborted
    assert inboxes[1].outcome() is Outcome.LENGTH
    engine.close()


def test_a_request_that_never_fits_is_refused_and_takes_none_of_its_call_with_it() -> None:
    engine, _ = started(num_blocks=8)
    with pytest.raises(ValueError, match="the limit is 128"):
        send(engine, generate(random_ids(5, 1)), generate(random_ids(129, 1)))
    assert send(engine, generate(random_ids(5, 1), 3))[0].outcome() is Outcome.LENGTH
    engine.close()
    assert totals(engine) == (1, 1)


class BrokenText:
    """A text stream that fails at its third token."""

    def __init__(self) -> None:
        self._tokens = 0

    def append(self, token: int) -> tuple[str, bool]:
        self._tokens += 1
        if self._tokens == 3:
            raise RuntimeError("not text")
        return "", False

    def finish(self) -> str:
        return ""


def test_a_fault_in_one_text_ends_that_request_only() -> None:
    engine, bench = started()
    bad, good, text = generate(random_ids(9, 1), 30), generate(random_ids(9, 2), 30), embed(random_ids(300, 1))
    bad.text = BrokenText()
    inboxes = send(engine, bad, good, text)
    assert [inbox.outcome() for inbox in inboxes] == [Outcome.FAILED, Outcome.LENGTH, Outcome.EMBEDDED]
    engine.close()
    assert bench.scheduler.pool.used == 0
    assert totals(engine) == (3, 3)


def test_what_a_failing_commit_had_finished_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    bench = Bench(backbone())
    engine = Engine(bench.scheduler, Faulty(bench), on_failure=left.set)
    commit = bench.scheduler.commit

    def failing(plan: Plan, result: StepResult, now: float) -> list[Output]:
        commit(plan, result, now)
        raise RuntimeError("half-way")

    monkeypatch.setattr(bench.scheduler, "commit", failing)
    inboxes = send(engine, embed(random_ids(5, 1)), generate(random_ids(9, 2), 1), generate(random_ids(9, 2), 30))
    assert {inbox.outcome() for inbox in inboxes} == {Outcome.FAILED}
    assert left.wait(5)
    assert totals(engine) == (3, 3)
    assert bench.scheduler.pool.used == 0
    assert engine.metrics.gauges["orthrus_kv_blocks", (("state", "used"),)] == 0


def test_one_receiver_of_many_requests_is_asked_once() -> None:
    engine, _ = started(lambda step: time.sleep(0.02), token_budget=20, max_running=2)
    asked = []

    class Shared(Inbox):
        def deliver(self, output: Output) -> None:
            self.outputs.append(output)
            if len(self.outputs) == 40:
                self.done.set()

        def cancelled(self) -> bool:
            asked.append(time.monotonic())
            return False

    shared = Shared()
    requests = [embed(random_ids(18, n)) for n in range(40)]
    for request in requests:
        request.reply = shared
    engine.submit(requests)
    assert shared.done.wait(20)
    engine.close()
    assert len(asked) < 20
