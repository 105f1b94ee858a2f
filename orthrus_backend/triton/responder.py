"""One Triton request's way back: data, errors, and exactly one FINAL. Knows no contract and no engine."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import triton_python_backend_utils as pb_utils

ErrorCode = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]
CODED = (
    "orthrus_coded_errors"  # request parameter of a caller inside Triton, which sees an error's text but not its code
)


class Responder:
    """Sends the responses of one request; closed by its FINAL."""

    def __init__(self, request: Any, on_final: Callable[[str], None] = lambda code: None) -> None:
        """`on_final` is called once, when FINAL was sent, with the code of the error that it was or an empty string."""
        self._on_final = on_final
        self._sender = request.get_response_sender()
        try:
            self._coded = CODED in request.parameters()
        except UnicodeDecodeError:  # whoever reads the parameters will say so, through this responder
            self._coded = False
        self._open = True

    @property
    def open(self) -> bool:
        """Whether FINAL is still to come."""
        return self._open

    def is_cancelled(self) -> bool:
        """Whether nobody wants more: FINAL was sent, or the client has gone.

        Triton is not asked after FINAL, when the request no longer exists.
        """
        return not self._open or bool(self._sender.is_cancelled())

    def send(self, tensors: Sequence[Any], final: bool) -> None:
        """Send one response."""
        self._respond(pb_utils.InferenceResponse(output_tensors=list(tensors)), final)

    def fail(self, message: str, code: ErrorCode) -> None:
        """Send an error as the last response.

        Triton's HTTP generate endpoints answer 400 to every error, so one that is worth another try says so itself.
        """
        if self._coded:
            message = f"{code}: {message}"
        elif code == "UNAVAILABLE":
            message = f"unavailable: {message}"
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        self._respond(pb_utils.InferenceResponse(error=error), final=True, code=code)

    def finish(self) -> None:
        """Send FINAL alone, where there is nothing to say."""
        assert self._open
        self._open = False
        self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self._on_final("")

    def _respond(self, response: Any, final: bool, code: str = "") -> None:
        assert self._open, "a response after FINAL"
        self._open = not final
        try:
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
        finally:
            if final:
                self._on_final(code)


def split_code(message: str) -> tuple[str, ErrorCode]:
    """Text and code of an error that was sent to a caller which asked for `CODED`; INTERNAL where it has no code."""
    name, colon, text = message.partition(": ")
    for code in get_args(ErrorCode):
        if colon and name == code:
            return text, code
    return message, "INTERNAL"
