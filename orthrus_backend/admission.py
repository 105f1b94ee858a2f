"""Bounds what may wait: for each kind of work a number of requests and of tokens.

Responsible for refusing at once what would wait too long. Knows no threads: its owner calls it under one lock.
"""

from collections.abc import Mapping, Sequence

from orthrus_backend.config import LimitSettings
from orthrus_backend.request import Kind, Request
from orthrus_backend.scheduling.queue import Queue


class QueueFullError(RuntimeError):
    """Too much is waiting already; the same call may pass later."""


class Admission:
    """Counts what was admitted and is on its way to the queues, beside what is in them.

    The queues may shrink meanwhile, and grow by what is preempted, never by more than was admitted.
    """

    def __init__(self, limits: LimitSettings, queues: Mapping[Kind, Queue]) -> None:
        self._limits = limits
        self._queues = queues
        self._coming_requests = dict.fromkeys(Kind, 0)
        self._coming_tokens = dict.fromkeys(Kind, 0)

    def check(self, kind: Kind, requests: int, tokens: int = 0) -> None:
        """Refuse a call that does not fit beside what waits; into an empty queue any call may go.

        Raises:
            QueueFullError: says what waits and what the limits are.
        """
        queue, limits = self._queues[kind], self._limits
        waiting = len(queue) + self._coming_requests[kind]
        waiting_tokens = queue.tokens + self._coming_tokens[kind]
        fits = waiting + requests <= limits.max_queued_requests and waiting_tokens + tokens <= limits.max_queued_tokens
        if waiting and not fits:
            raise QueueFullError(
                f"the {kind} queue is full: {waiting} requests with {waiting_tokens} tokens are waiting; the limits"
                f" are {limits.max_queued_requests} requests and {limits.max_queued_tokens} tokens; try again later"
            )

    def admit(self, requests: Sequence[Request]) -> None:
        """Let the requests of one call pass, all or none.

        Raises:
            QueueFullError: as `check`.
        """
        for kind, (count, tokens) in self._work(requests).items():
            self.check(kind, count, tokens)
        self._count(requests, 1)

    def arrived(self, requests: Sequence[Request]) -> None:
        """Admitted requests are in their queues now."""
        self._count(requests, -1)

    def _count(self, requests: Sequence[Request], sign: int) -> None:
        for kind, (count, tokens) in self._work(requests).items():
            self._coming_requests[kind] += sign * count
            self._coming_tokens[kind] += sign * tokens

    def _work(self, requests: Sequence[Request]) -> dict[Kind, tuple[int, int]]:
        """Requests and tokens by kind."""
        work: dict[Kind, tuple[int, int]] = {}
        for request in requests:
            count, tokens = work.get(request.kind, (0, 0))
            work[request.kind] = count + 1, tokens + self._queues[request.kind].work(request)
        return work
