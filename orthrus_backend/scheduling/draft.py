"""The step that is being planned, turn by turn, before it is a plan."""

from collections.abc import Iterable

from orthrus_backend.plan import Slice
from orthrus_backend.request import Request


class Draft:
    """Slices of the step being planned; several turns of one request join into one slice."""

    def __init__(self, budget: int, most: int) -> None:
        """`budget`: tokens that it should hold; `most`: what it must not exceed."""
        self.left = budget
        self.room = most
        self.lengths: dict[int, int] = {}
        self.requests: dict[int, Request] = {}
        self.entering = 0  # generations whose prompt completes in this step

    def planned(self, request: Request) -> int:
        """Tokens of the request that the step already holds."""
        return self.lengths.get(request.order, 0)

    def add(self, request: Request, tokens: int) -> None:
        """Give the request a turn of so many tokens."""
        self.requests[request.order] = request
        self.lengths[request.order] = self.planned(request) + tokens
        self.left = max(0, self.left - tokens)
        self.room -= tokens

    def slices(self) -> Iterable[Slice]:
        """One slice for each request, in the order of their first turns."""
        return (Slice(request, request.computed, self.lengths[order]) for order, request in self.requests.items())
