"""One call of a client, from when it comes in to its last response, and what is worth telling of it then.

A call is what a client sent: several texts to embed, or several continuations, are one. Knows neither Triton nor where
the story goes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orthrus_backend.accounting import ENDS, End
from orthrus_backend.request import GenerateRequest, Kind, Outcome, Request

ID_LENGTH = 128  # characters; ids come from outside, and what holds them should not grow by their will
_WORST_FIRST = (Outcome.FAILED, Outcome.TIMEOUT, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class Record:
    """A call that has ended. Times are seconds of `time.monotonic`, None for what did not happen.

    `requests` counts the texts or continuations it became, 0 if it was turned away before. `input_tokens` counts a
    prompt once, however many continuations it has. `error` is the code of the error that answered it, if one did.
    `parent` is the W3C trace context that came with it (`traceparent`, `tracestate`).
    """

    id: str
    kind: Kind
    chat: bool
    adapter: str | None
    requests: int
    input_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    end: End
    error: str
    parent: Mapping[str, str]
    arrived: float
    started: float | None
    first_token: float | None
    ended: float


class Entry:
    """A call under way. It is told what becomes known of the call, and tells `on_end` once, at the last response."""

    def __init__(self, on_end: Callable[[Record], None]) -> None:
        self._on_end = on_end
        self._arrived = time.monotonic()
        self._open = True
        self._requests: Sequence[Request] = ()
        self.id = ""
        self.kind = Kind.GENERATE  # what the contract takes a call for that does not say
        self._chat = False
        self.parent: Mapping[str, str] = {}

    def became(self, requests: Sequence[Request], chat: bool = False) -> None:
        """The call was understood, and the engine is about to get these; `chat` if its prompt is a conversation."""
        self._requests = requests
        self._chat = chat

    @contextmanager
    def intake(self) -> Iterator[None]:
        """While the call is read and handed to the engine: an exception means that the engine did not get it."""
        try:
            yield
        except Exception:
            self._requests = ()
            raise

    def forget(self) -> None:
        """This was no call for work: nothing is told of it."""
        self._open = False

    def close(self, error: str) -> None:
        """The last response leaves; `error` is its code, empty if it is no error."""
        if self._open:
            self._open = False
            self._on_end(self._record(error))

    def _record(self, error: str) -> Record:
        requests = self._requests
        generations = [request for request in requests if isinstance(request, GenerateRequest)]
        starts = [request.first_scheduled for request in requests if request.first_scheduled is not None]
        firsts = [request.first_token_at for request in generations if request.first_token_at is not None]
        return Record(
            id=self.id[:ID_LENGTH],
            kind=self.kind,
            chat=self._chat,
            adapter=requests[0].adapter.name if requests and requests[0].adapter else None,
            requests=len(requests),
            input_tokens=generations[0].prompt_length if generations else sum(r.total for r in requests),
            output_tokens=sum(generation.produced for generation in generations),
            finish_reasons=tuple(g.outcome.value for g in generations if g.outcome is not None),
            end=self._end(error),
            error=error,
            parent=self.parent,
            arrived=self._arrived,
            started=min(starts, default=None),
            first_token=min(firsts, default=None),
            ended=time.monotonic(),
        )

    def _end(self, error: str) -> End:
        if error == "INTERNAL":
            return "failed"
        if not self._requests:
            return "refused"
        outcomes = {request.outcome for request in self._requests}
        return ENDS[next((outcome for outcome in _WORST_FIRST if outcome in outcomes), Outcome.STOP)]
