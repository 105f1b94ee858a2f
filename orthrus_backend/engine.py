"""The loop: schedule, forward and emit, commit. One thread owns scheduler and runner; others only leave messages.

Responsible for the life of requests between submission and last answer: whatever is accepted is answered, also when a
step fails or the engine is closed. Knows no protocol and no tensor.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Protocol

from orthrus_backend.accounting import Accounting
from orthrus_backend.admission import Admission
from orthrus_backend.config import LimitSettings
from orthrus_backend.delivery import Delivery
from orthrus_backend.metrics import Metrics
from orthrus_backend.outputs import Ended, Output, StepResult
from orthrus_backend.plan import Plan
from orthrus_backend.request import Kind, Outcome, Request
from orthrus_backend.scheduling.scheduler import Scheduler

_log = logging.getLogger(__name__)


class StepRunner(Protocol):
    """Computes a plan."""

    def run(self, plan: Plan) -> StepResult:
        """Forward pass, pooling and sampling for the slices of a plan."""


class EngineClosedError(RuntimeError):
    """The engine takes no more requests: it is shutting down, or a step failed."""


class _State(Enum):
    OPEN = auto()
    CLOSING = auto()
    DEAD = auto()


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class _Cancel:
    request: Request


@dataclass(frozen=True, slots=True)
class _CancelId:
    id: str


@dataclass(frozen=True, slots=True)
class _Close:
    deadline: float  # of time.monotonic; then what still runs is failed


_Message = _Submit | _Cancel | _CancelId | _Close


class Engine:
    """Serves requests until it is closed. All methods may be called from any thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        on_failure: Callable[[], None] = lambda: None,
        limits: LimitSettings | None = None,
    ) -> None:
        """`on_failure` is called when a step has failed, after everything accepted was answered."""
        self.metrics = Metrics()
        self._scheduler = scheduler
        self._runner = runner
        self._on_failure = on_failure
        self._accounting = Accounting(self.metrics, scheduler)
        self._admission = Admission(limits or LimitSettings(), scheduler.queues)
        self._unanswered: dict[int, Request] = {}  # by identity: accepted, and its last output is not on its way
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._lock = threading.Lock()  # makes "is it open", "is there room" and "leave a message" one act
        self._state = _State.OPEN
        self._deadline: float | None = None
        self._delivery = Delivery(cancel=lambda request: self._inbox.put(_Cancel(request)))
        self._thread = threading.Thread(target=self._run, name="orthrus-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._state is _State.OPEN

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; each one's `reply` is told everything that becomes of it.

        Raises:
            ValueError: one of them could never be computed; none is queued.
            QueueFullError: too much is waiting; none is queued.
            EngineClosedError: the engine takes no more requests.
        """
        for request in requests:
            self._scheduler.check_admissible(request)
        with self._lock:
            self._check_open()
            self._admission.admit(requests)
            self._delivery.watch(requests)
            self._inbox.put(_Submit(requests))

    def check_room(self, kind: Kind, requests: int) -> None:
        """Raise as `submit` would for so many requests, however short: before any time is spent on reading them."""
        with self._lock:
            self._check_open()
            self._admission.check(kind, requests)

    def cancel(self, request: Request) -> None:
        """End a request, wherever it stands; no effect if it has ended."""
        self._inbox.put(_Cancel(request))

    def cancel_id(self, request_id: str) -> None:
        """End all requests that carry this id, as their own or as their call's."""
        self._inbox.put(_CancelId(request_id))

    def close(self, timeout: float = 0.0) -> None:
        """Take no more requests, give running ones `timeout` seconds to finish, fail the rest, stop the threads."""
        with self._lock:
            if self._state is _State.OPEN:
                self._state = _State.CLOSING
                self._inbox.put(_Close(time.monotonic() + timeout))
        self._thread.join()
        self._delivery.close()

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            reason = "is shutting down" if self._state is _State.CLOSING else "has failed"
            raise EngineClosedError(f"the engine {reason} and takes no more requests")

    def _run(self) -> None:
        try:
            while self._read_messages():
                if self._scheduler.has_work:
                    self._step()
        except Exception as error:
            _log.exception("a step failed; the engine stops")
            self._fail_all(f"the engine failed: {error}")
            self._delivery.close()
            self._on_failure()

    def _step(self) -> None:
        started = time.monotonic()
        plan = self._scheduler.schedule(started)
        result = self._runner.run(plan)
        ended = time.monotonic()
        outputs = self._scheduler.commit(plan, result, ended)
        self._send(outputs)
        self._accounting.step(plan, outputs, started, ended)

    def _read_messages(self) -> bool:
        """Take all messages, waiting for one while there is nothing to do. False when the loop is to end."""
        idle = not self._scheduler.has_work
        if idle:
            self._scheduler.check_integrity()
            self._accounting.idle()
            if self._deadline is not None:
                return False
        try:
            self._handle(self._inbox.get(block=idle))
            while True:
                self._handle(self._inbox.get_nowait())
        except Empty:
            pass
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self._end(list(self._scheduler.live.values()), Outcome.FAILED, "the server is shutting down")
        late = [r for r in self._scheduler.live.values() if r.deadline is not None and now >= r.deadline]
        self._end(late, Outcome.TIMEOUT, "the request's time is over")
        return True

    def _handle(self, message: _Message) -> None:
        match message:
            case _Submit(requests):
                with self._lock:
                    for request in requests:
                        self._unanswered[id(request)] = request
                        self._scheduler.add(request)
                    self._admission.arrived(requests)
                self._accounting.received(requests)
            case _Cancel(request):
                self._end([request], Outcome.CANCELLED)
            case _CancelId(request_id):
                carry = [r for r in self._scheduler.live.values() if request_id in (r.id, r.call)]
                self._end(carry, Outcome.CANCELLED)
            case _Close(deadline):
                self._deadline = deadline

    def _end(self, requests: Sequence[Request], outcome: Outcome, message: str = "") -> None:
        outputs: list[Output] = []
        for request in requests:
            ended = self._scheduler.end(request, outcome, message)
            if ended is not None:
                outputs.append(ended)
        if outputs:
            self._send(outputs)
            self._accounting.ended(outputs, time.monotonic())

    def _send(self, outputs: Sequence[Output]) -> None:
        self._delivery.put(outputs)
        for output in outputs:
            if output.final:
                del self._unanswered[id(output.request)]

    def _fail_all(self, message: str) -> None:
        """The engine's thread ends here: answer everything accepted, also what is still in the inbox."""
        with self._lock:
            self._state = _State.DEAD
        pending = list(self._unanswered.values())
        self._unanswered.clear()
        while True:
            try:
                left = self._inbox.get_nowait()
            except Empty:
                break
            if isinstance(left, _Submit):
                self._accounting.received(left.requests)
                pending.extend(left.requests)
        outputs: list[Output] = []
        for request in pending:
            request.outcome = Outcome.FAILED
            outputs.append(Ended(request, Outcome.FAILED, message))
        self._delivery.put(outputs)
        self._scheduler.abandon()
        self._accounting.ended(outputs, time.monotonic())
        self._accounting.idle()
