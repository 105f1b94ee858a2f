"""Requests of one kind that wait for tokens to be computed, in order of arrival, and how much work they are."""

from collections import deque
from collections.abc import Iterator

from orthrus_backend.request import GenerateRequest, Request


class Queue:
    """First come, first served. `tokens` is the outstanding work: tokens that no plan has taken yet.

    With `count_expected_output`, the output that waiting generations may still produce counts as well.
    """

    def __init__(self, count_expected_output: bool = False) -> None:
        self._requests: deque[Request] = deque()
        self._count_expected_output = count_expected_output
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def head(self) -> Request | None:
        """The request whose turn is next."""
        return self._requests[0] if self._requests else None

    def work(self, request: Request) -> int:
        """What a request adds to `tokens`."""
        return request.remaining + self._expected_output(request)

    def append(self, request: Request) -> None:
        """A request arrives."""
        self._requests.append(request)
        self.tokens += self.work(request)

    def put_back(self, request: Request) -> None:
        """A preempted request returns; it arrived before all that wait."""
        assert not self._requests or request.order < self._requests[0].order
        self._requests.appendleft(request)
        self.tokens += self.work(request)

    def take(self, tokens: int, last: bool) -> None:
        """A plan took tokens of the head; with `last` these were all it needs, and it leaves."""
        self.tokens -= tokens
        if last:
            self.tokens -= self._expected_output(self._requests.popleft())

    def skip(self, tokens: int) -> None:
        """These tokens of the head need not be computed: they are known from another request."""
        self.tokens -= tokens

    def remove(self, request: Request) -> None:
        """Drop a request that was cancelled, or that is preempted and will be put back with its progress forgotten."""
        self._requests.remove(request)
        self.tokens -= self.work(request)

    def clear(self) -> None:
        """Drop all requests."""
        self._requests.clear()
        self.tokens = 0

    def _expected_output(self, request: Request) -> int:
        if self._count_expected_output and isinstance(request, GenerateRequest):
            return request.max_tokens - request.produced
        return 0
