"""Makes one Triton request into requests of the engine, or answers what is wrong with it. Never raises.

Responsible for what holds for every call, whatever it asks for: its size, its time, its entry in the books.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from orthrus_backend.admission import QueueFullError
from orthrus_backend.assembly import Service
from orthrus_backend.config import LimitSettings
from orthrus_backend.engine import EngineClosedError
from orthrus_backend.observability.entry import Entry, Record
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Request
from orthrus_backend.triton.inputs import EmbedCall, GenerateCall, StopCall, asked_kind, read_call
from orthrus_backend.triton.parameters import read_timeout
from orthrus_backend.triton.replies import EmbedReply, GenerateReply, acknowledge
from orthrus_backend.triton.responder import Responder
from orthrus_backend.triton.roster import LONGEST_ID
from orthrus_backend.triton.size import request_bytes
from orthrus_backend.triton.trace_context import trace_context

_log = logging.getLogger(__name__)


class Reception:
    """Takes requests for one engine."""

    def __init__(
        self,
        service: Service,
        limits: LimitSettings,
        stream_interval: int,
        on_end: Callable[[Record], None],
        on_stop: Callable[[str], None],
    ) -> None:
        """A message of a stream carries `stream_interval` tokens.

        `on_end` is told of every call, when its last response was sent; `on_stop` of every id to stop.
        """
        self._service = service
        self._limits = limits
        self._stream_interval = stream_interval
        self._on_end = on_end
        self._on_stop = on_stop

    def receive(self, request: Any) -> None:
        """Hand a request to the engine, which answers it later; or refuse it now."""
        entry = Entry(self._on_end)
        responder = Responder(request, on_final=entry.close)
        try:
            with entry.intake():
                self._accept(request, responder, entry)
        except ValueError as error:
            responder.fail(str(error), "INVALID_ARG")
        except (EngineClosedError, QueueFullError) as error:
            responder.fail(str(error), "UNAVAILABLE")
        except Exception as error:
            _log.exception("a request could not be read")
            responder.fail(f"internal error: {error}", "INTERNAL")

    def _accept(self, request: Any, responder: Responder, entry: Entry) -> None:
        arrival, request_id = time.monotonic(), request.request_id()
        if (size := request_bytes(request)) > (limit := self._limits.max_request_bytes):
            raise ValueError(f"the request has {size} bytes; the limit is {limit} (max_request_bytes)")
        entry.id = request_id
        entry.kind = asked_kind(request)
        entry.parent = trace_context(request)
        timeout = read_timeout(request) or self._limits.default_timeout
        call = read_call(request)
        accepted: Sequence[Request]
        match call:
            case StopCall():
                entry.forget()
                self._stop(request_id, responder)
                return
            case GenerateCall():
                accepted = self._generations(call, request_id, responder)
                entry.became(accepted, chat=call.is_chat)
            case EmbedCall():
                accepted = self._embeddings(call, request_id, responder)
                entry.became(accepted)
        for each in accepted:
            each.call = responder.call
            each.deadline = arrival + timeout if timeout else None
        self._service.engine.submit(accepted)

    def _generations(self, call: GenerateCall, request_id: str, responder: Responder) -> Sequence[GenerateRequest]:
        self._service.engine.check_room(Kind.GENERATE, call.params.n)
        needs_logprobs = bool(call.extras & {"cumulative_logprob", "logprobs"})
        accepted = self._service.intake.generate.continuations(
            call.prompt, call.params, request_id=request_id, needs_logprobs=needs_logprobs
        )
        reply = GenerateReply(responder, call, self._service.tokenization, accepted, self._stream_interval)
        for generation in accepted:
            generation.reply = reply
        return accepted

    def _embeddings(self, call: EmbedCall, request_id: str, responder: Responder) -> Sequence[EmbedRequest]:
        if len(call.texts) > (limit := self._limits.max_texts_per_request):
            raise ValueError(f"{len(call.texts)} texts in one request; the limit is {limit} (max_texts_per_request)")
        self._service.engine.check_room(Kind.EMBED, len(call.texts))
        accepted = []
        for position, text in enumerate(call.texts):
            try:
                accepted.append(self._service.intake.embed(text, call.params, request_id=request_id))
            except ValueError as error:
                raise ValueError(f"text {position}: {error}" if len(call.texts) > 1 else str(error)) from error
        reply = EmbedReply(responder, call, accepted)
        for embedding in accepted:
            embedding.reply = reply
        return accepted

    def _stop(self, request_id: str, responder: Responder) -> None:
        if not request_id:
            raise ValueError("stop: the id of the request to cancel is needed as this request's id")
        if (size := len(request_id.encode())) > LONGEST_ID:
            raise ValueError(f"stop: the id has {size} bytes; the limit is {LONGEST_ID}")
        self._service.engine.cancel_id(request_id)
        self._on_stop(request_id)
        acknowledge(responder)
