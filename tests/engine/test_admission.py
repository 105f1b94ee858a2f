"""Bounded queues: what does not fit is refused at once, exactly at the limit, however many ask at the same time."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from orthrus_backend.admission import QueueFullError
from orthrus_backend.config import LimitSettings
from orthrus_backend.engine import Engine
from orthrus_backend.request import Kind, Outcome
from tests.engine.test_engine import Faulty, send
from tests.engine.tiny import Bench, backbone, embed, generate, random_ids


class Held:
    """An engine whose first step waits for `go`; a request is in it, so that all others queue up."""

    def __init__(self, **limits: int) -> None:
        self.go, reached = threading.Event(), threading.Event()

        def before(step: int) -> None:
            reached.set()
            assert self.go.wait(20)

        bench = Bench(backbone())
        self.engine = Engine(bench.scheduler, Faulty(bench, before), limits=LimitSettings(**limits))
        self.first = send(self.engine, generate(random_ids(5, 1)))[0]
        assert reached.wait(20)


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Iterator[Held]:
    """One with the limits of the test's parameter."""
    held = Held(**request.param)
    yield held
    held.go.set()
    held.engine.close()


@pytest.mark.parametrize("held", [{"max_queued_requests": 3}], indirect=True)
def test_what_is_beyond_the_limit_is_refused_with_what_waits_and_the_rest_is_answered(held: Held) -> None:
    waiting = [send(held.engine, generate(random_ids(5, n)))[0] for n in range(3)]
    with pytest.raises(QueueFullError, match=r"generate queue is full: 3 requests with 15 tokens .* 3 requests and"):
        send(held.engine, generate(random_ids(5, 4)))
    with pytest.raises(QueueFullError):
        held.engine.check_room(Kind.GENERATE, 1)
    waiting += send(held.engine, embed(random_ids(5, 5)))  # a queue of its own
    held.go.set()
    assert all(inbox.outcome() in (Outcome.LENGTH, Outcome.EMBEDDED) for inbox in [held.first, *waiting])
    assert send(held.engine, generate(random_ids(5, 6)))[0].outcome() is Outcome.LENGTH


@pytest.mark.parametrize("held", [{"max_queued_tokens": 100}], indirect=True)
def test_tokens_are_bounded_too_and_all_of_a_call_or_nothing_waits(held: Held) -> None:
    send(held.engine, embed(random_ids(60, 1)))
    with pytest.raises(QueueFullError, match=r"embed queue is full: 1 requests with 60 tokens .* 100 tokens"):
        send(held.engine, embed(random_ids(20, 2)), embed(random_ids(21, 3)))
    assert send(held.engine, embed(random_ids(40, 4)))


@pytest.mark.parametrize("held", [{"max_queued_tokens": 10, "max_queued_requests": 2}], indirect=True)
def test_an_empty_queue_takes_a_call_of_any_size(held: Held) -> None:
    inboxes = send(held.engine, *(embed(random_ids(20, n)) for n in range(4)))
    held.go.set()
    assert all(inbox.outcome() is Outcome.EMBEDDED for inbox in inboxes)


@pytest.mark.parametrize("held", [{"max_queued_requests": 40}], indirect=True)
def test_many_at_once_pass_exactly_up_to_the_limit(held: Held) -> None:
    requests = [generate(random_ids(5, n)) for n in range(200)]

    def passes(n: int) -> bool:
        try:
            send(held.engine, requests[n])
        except QueueFullError:
            return False
        return True

    with ThreadPoolExecutor(16) as callers:
        assert sum(callers.map(passes, range(200))) == 40


def test_none_is_lost_or_counted_twice_while_the_engine_takes_them() -> None:
    """Far more calls than the limit, retried as they are refused: all pass in the end, and nothing stays counted."""
    bench = Bench(backbone())
    engine = Engine(bench.scheduler, bench.runner, limits=LimitSettings(max_queued_requests=4))

    def insist(n: int) -> Outcome | None:
        while True:
            try:
                return send(engine, embed(random_ids(5, n)))[0].outcome()
            except QueueFullError:
                time.sleep(0.001)

    with ThreadPoolExecutor(16) as callers:
        assert set(callers.map(insist, range(200))) == {Outcome.EMBEDDED}
    held = send(engine, *(embed(random_ids(5, n)) for n in range(4)))
    assert all(inbox.outcome() is Outcome.EMBEDDED for inbox in held)
    engine.close()
