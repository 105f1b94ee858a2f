"""The face of embeddings: one request in, one response out, so that plain `infer` works over HTTP and gRPC.

Asks the decoupled backend model and passes its answer on, and tells its engines when nobody waits for the answer any
more. Answers by itself when an engine has died, of which Triton tells nobody who waits. Knows nothing of embeddings.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import numpy as np
import triton_python_backend_utils as pb_utils

from orthrus_backend.delivery import POLL_SECONDS, POLLED
from orthrus_backend.triton.logs import forward_logs
from orthrus_backend.triton.parameters import CALL, read_keys, read_timeout
from orthrus_backend.triton.parent import end_with_parent
from orthrus_backend.triton.responder import ErrorCode, Responder, split_code
from orthrus_backend.triton.roster import Presence, Roster
from orthrus_backend.triton.trace_context import trace_context
from orthrus_backend.turns import Turns

_BACKEND = "orthrus"
_MAX_WAITING = 512  # calls that wait for the backend at once; each one holds a sleeping thread
_READING_SECONDS = 60.0  # until engines have read all that they were sent
_DEAD = "an engine has died"
_log = logging.getLogger(__name__)


class _Call:
    """A request on its way to the backend and back.

    Beside the request's own id, which others may carry as well, the backend's copy has one that nobody else knows.
    """

    def __init__(self, request: Any, responder: Responder) -> None:
        """Raises ValueError for a request that cannot be passed on."""
        self.responder = responder
        self.id = uuid4().hex
        self._request_id = request.request_id()
        self._timeout = read_timeout(request)
        self._received = time.monotonic()
        self._parameters = _for_triton(read_keys(request)) | {**trace_context(request), CALL: self.id}
        self._inputs, self._outputs = _tensors(request)
        self._claim = threading.Lock()  # held by the first who answers

    def forwarded(self) -> Any:
        """The copy for the backend, with the time that is left; None if none is left."""
        microseconds = 0
        if self._timeout is not None:
            microseconds = int((self._timeout - (time.monotonic() - self._received)) * 1e6)
            if microseconds <= 0:
                return None
        return pb_utils.InferenceRequest(
            model_name=_BACKEND,
            request_id=self._request_id,
            inputs=self._inputs,
            requested_output_names=self._outputs,
            parameters=self._parameters,
            timeout=microseconds,
        )

    def send(self, tensors: Sequence[Any]) -> None:
        """Answer, unless that was done."""
        if self._claim.acquire(blocking=False):
            self.responder.send(tensors, final=True)

    def fail(self, message: str, code: ErrorCode) -> None:
        """Answer with an error, unless there is an answer."""
        if self._claim.acquire(blocking=False):
            self.responder.fail(message, code)


class TritonPythonModel:
    """Waits for many answers at once. Triton's own asynchronous call would do the same on asyncio's few threads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the threads that wait."""
        forward_logs()
        end_with_parent()
        self._roster = Roster(_BACKEND, server=os.getppid())
        self._engines = Presence()  # as they were when last looked at
        self._waiters = _waiters()
        self._calls: dict[str, _Call] = {}
        self._turns = Turns(POLLED)
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._watch_others, name="orthrus-face-watch", daemon=True)
        self._watch.start()

    def is_ready(self) -> bool:
        """Whether no engine has died. One that was unloaded, or is still to be loaded, is not dead."""
        return not self._engines.dead

    def execute(self, requests: Sequence[Any]) -> None:
        """Pass requests on; their answers come later."""
        for request in requests:
            responder = Responder(request)
            if self._engines.dead and not self._engines.alive:
                responder.fail(_DEAD, "UNAVAILABLE")
                continue
            try:
                call = _Call(request, responder)
            except ValueError as error:
                responder.fail(str(error), "INVALID_ARG")
                continue
            except Exception as error:  # raised further, it would be the answer to its neighbours, too
                responder.fail(f"internal error: {error}", "INTERNAL")
                continue
            self._calls[call.id] = call
            self._waiters.submit(self._answer, call)

    def finalize(self) -> None:
        """Wait for the answers that are still to come."""
        while any(call.responder.open for call in list(self._calls.values())):
            time.sleep(POLL_SECONDS)
        self._closing.set()
        self._watch.join()
        self._roster.close()

    def _answer(self, call: _Call) -> None:
        try:
            if call.responder.is_cancelled():
                call.fail("its caller has gone", "CANCELLED")
                return
            forwarded = call.forwarded()
            if forwarded is None:
                call.fail("the request's time is over", "DEADLINE_EXCEEDED")
                return
            answers = [r for r in forwarded.exec(decoupled=True) if r.has_error() or r.output_tensors()]
            assert len(answers) == 1, f"the backend answered {len(answers)} times"
            if answers[0].has_error():
                call.fail(*split_code(answers[0].error().message()))
            else:
                call.send(answers[0].output_tensors())
        except Exception as error:  # whatever it is, the caller must not wait for ever
            call.fail(f"embed failed: {error}", "INTERNAL")
        finally:
            self._calls.pop(call.id, None)

    def _watch_others(self) -> None:
        """Looks for engines that die and for callers that leave.

        The engines are told of a caller until its call has ended: what overtakes the call finds nothing to end.
        """
        while not self._closing.wait(POLL_SECONDS):
            try:
                self._look()
            except Exception:  # the next look may go well
                _log.exception("the engines could not be looked at")

    def _look(self) -> None:
        before, self._engines = self._engines, self._roster.presence()
        if died := self._engines.dead - before.dead:
            _log.error("processes of engines have died: %s", sorted(died))
            self._give_up()
        for call in self._turns.take(list(self._calls.values())):
            if call.responder.is_cancelled():
                self._roster.tell(call.id)

    def _give_up(self) -> None:
        """Answer all that wait: nobody knows which of them had gone to the engine that died, and which to another one.

        Triton never wakes the threads that wait for it, so others take their place; and they do so first: a call that
        comes meanwhile is among those given up, or has one of the new threads.
        """
        self._waiters = _waiters()
        given_up = list(self._calls.values())
        for call in given_up:
            call.fail(_DEAD, "UNAVAILABLE")
        forget = threading.Timer(_READING_SECONDS, self._forget, given_up)
        forget.daemon = True
        forget.start()

    def _forget(self, *calls: _Call) -> None:
        for call in calls:
            self._calls.pop(call.id, None)


def _waiters() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_WAITING, thread_name_prefix="orthrus-face")


def _tensors(request: Any) -> tuple[list[Any], list[str]]:
    """What the backend gets, and what is wanted of its answer.

    LiteLLM calls the texts `input_text`, and of the answer it understands the vectors alone.
    """
    given = {name: pb_utils.get_input_tensor_by_name(request, name) for name in ("text_input", "embedding_parameters")}
    outputs = ["embedding", "num_input_tokens"]
    other = pb_utils.get_input_tensor_by_name(request, "input_text")
    if other is not None:
        if given["text_input"] is not None:
            raise ValueError("text_input and input_text are two names of one input; only one of them is expected")
        given["text_input"] = pb_utils.Tensor("text_input", other.as_numpy())
        outputs = ["embedding"]
    if given["text_input"] is None:
        raise ValueError("text_input is needed: the texts to embed")
    task = pb_utils.Tensor("task", np.array([b"embed"], dtype=np.object_))
    return [*(tensor for tensor in given.values() if tensor is not None), task], outputs


def _for_triton(parameters: dict[str, Any]) -> dict[str, str | int | bool]:
    """Parameters as Triton takes them inside, without floats; the backend reads numbers from text as well."""
    return {name: str(value) if isinstance(value, float) else value for name, value in parameters.items()}
