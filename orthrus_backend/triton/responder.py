"""One Triton request's way back: data, errors, and exactly one FINAL. Knows no contract and no engine."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import triton_python_backend_utils as pb_utils

from orthrus_backend.triton.parameters import read_call_id

ErrorCode = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"]
# What tells errors apart where the protocol does not: Triton has no code for a deadline, its HTTP generate endpoints
# answer 400 to every error, and in 2.51 all of its HTTP does so to CANCELLED.
_PREFIXES: dict[ErrorCode, str] = {
    "UNAVAILABLE": "unavailable: ",
    "CANCELLED": "cancelled: ",
    "DEADLINE_EXCEEDED": "deadline exceeded: ",
}


class Responder:
    """Sends the responses of one request; closed by its FINAL. May be used from several threads."""

    def __init__(self, request: Any, on_final: Callable[[str], None] = lambda code: None) -> None:
        """`on_final` is called once, when FINAL was sent, with the code of the error that it was or an empty string."""
        self._on_final = on_final
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        try:
            # Whoever passes a request on inside Triton sees an error's text but not its code: the text there has both.
            self.call = read_call_id(request)
        except ValueError:  # whoever reads the parameters will say so, through this responder
            self.call = ""
        self._open = True

    @property
    def open(self) -> bool:
        """Whether FINAL is still to come."""
        return self._open

    def is_cancelled(self) -> bool:
        """Whether nobody wants more: FINAL was sent, or the client has gone.

        Triton is not asked after FINAL, when the request no longer exists, nor about what was passed on inside of it,
        of which it does not know; whoever passed it on tells the engine.
        """
        with self._lock:
            return not self._open or (not self.call and bool(self._sender.is_cancelled()))

    def send(self, tensors: Sequence[Any], final: bool) -> None:
        """Send one response."""
        self._respond(pb_utils.InferenceResponse(output_tensors=list(tensors)), final)

    def fail(self, message: str, code: ErrorCode) -> None:
        """Send an error as the last response."""
        message = f"{code}: {message}" if self.call else _PREFIXES.get(code, "") + message
        known = "CANCELLED" if code == "DEADLINE_EXCEEDED" else code
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, known))
        self._respond(pb_utils.InferenceResponse(error=error), final=True, code=code)

    def _respond(self, response: Any, final: bool, code: str = "") -> None:
        try:
            with self._lock:
                assert self._open, "a response after FINAL"
                self._open = not final
                self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
        finally:
            if final:
                self._on_final(code)


def split_code(message: str) -> tuple[str, ErrorCode]:
    """Text and code of an error that was sent to a caller inside Triton.

    One without a code is Triton's own: the request has reached no engine, or one that has died.
    """
    name, colon, text = message.partition(": ")
    for code in get_args(ErrorCode):
        if colon and name == code:
            return text, code
    return message, "UNAVAILABLE"
