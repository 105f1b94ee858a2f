"""The errors a call may end with, and how gRPC's and HTTP's status codes become them.

Triton's HTTP generate endpoints answer 400 to every error of the model, its gRPC streams have no code at all, and no
protocol has one for a deadline of the server's. The server therefore begins such messages with a word of their kind.
"""

import re
from http import HTTPStatus

import grpc

_ENSEMBLE = r"(?:in ensemble '[^']*', )?"  # what Triton puts before the message of an ensemble's step
# What comes with the code of an overload, but no second attempt changes: a missing header of a restricted protocol
# (Triton says UNAVAILABLE), a message over the server's limit (gRPC says RESOURCE_EXHAUSTED).
_REFUSAL = r"^This protocol is restricted|message larger than max"

# What gRPC says of a port that answers in HTTP/1 or hangs up at once, and httpx2 of one that does not speak HTTP/1.
_OTHER_PROTOCOL = re.compile(
    r"http1\.x server|Failed parsing HTTP/2|^failed to connect.*Socket closed|^illegal \w+ line"
)


class OrthrusError(Exception):
    """A call failed; raised itself only for what the server calls an internal or unknown error."""


class InvalidRequest(OrthrusError):  # noqa: N818  # gRPC's own name for it
    """The server refuses this request and would refuse it again; the message names what is wrong with it."""


class Unavailable(OrthrusError):  # noqa: N818  # gRPC's own name for it
    """Nobody answers there, or the server is overloaded or not ready: the same call may succeed later."""


class DeadlineExceeded(OrthrusError):  # noqa: N818  # gRPC's own name for it
    """The call's `timeout` passed. The server was told to stop working on it."""


class Cancelled(OrthrusError):  # noqa: N818  # gRPC's own name for it
    """The call was cancelled by somebody else than its caller, e.g. by a server that shuts down."""


_BY_BEGINNING: dict[str, type[OrthrusError]] = {
    "unavailable": Unavailable,
    "deadline exceeded": DeadlineExceeded,
    "cancelled": Cancelled,
    "internal error": OrthrusError,
}
_BEGINNING = re.compile(f"{_ENSEMBLE}({'|'.join(_BY_BEGINNING)}): ")

_BY_GRPC_CODE: dict[grpc.StatusCode, type[OrthrusError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.PERMISSION_DENIED: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: InvalidRequest,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}

# Any other 4xx is a refusal.
_BY_HTTP_STATUS: dict[int, type[OrthrusError]] = {
    HTTPStatus.REQUEST_TIMEOUT: Unavailable,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
    499: Cancelled,  # Triton's own
    HTTPStatus.NOT_IMPLEMENTED: InvalidRequest,
    HTTPStatus.BAD_GATEWAY: Unavailable,
    HTTPStatus.SERVICE_UNAVAILABLE: Unavailable,
    HTTPStatus.GATEWAY_TIMEOUT: DeadlineExceeded,
}


def grpc_error(error: grpc.RpcError, timeout: float | None) -> OrthrusError:
    """The error behind a gRPC call that failed, of either of gRPC's two APIs."""
    code: grpc.StatusCode = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout is not None:
        return deadline_error(timeout)
    details = error.details() or code.name
    if code is grpc.StatusCode.UNAVAILABLE:
        details = with_hint(details)
    if re.search(_REFUSAL, details):
        return InvalidRequest(details)
    return (_kind(details) or _BY_GRPC_CODE.get(code, OrthrusError))(details)


def with_hint(message: str) -> str:
    """The message of a connection that failed, with what to look at: whether a server runs there, and on which port."""
    if "Connection refused" in message:
        return f"{message}; nothing listens there: has the server been started (orthrus serve), and is it ready?"
    if _OTHER_PROTOCOL.search(message):
        ports = "Triton's gRPC is on port 8001 by default, its HTTP on port 8000"
        return f"{message}; perhaps what listens there speaks another protocol: {ports}"
    return message


def uncoded_error(message: str) -> OrthrusError:
    """The error behind a text alone."""
    return (_kind(message) or InvalidRequest)(message)


def http_error(status: int, message: str) -> OrthrusError:
    """The error behind an HTTP status; an error in the middle of a stream comes with the stream's own, 200."""
    other = InvalidRequest if status // 100 == 4 else OrthrusError
    return (_kind(message) or _BY_HTTP_STATUS.get(status, other))(message or f"HTTP status {status}")


def server_may_go_on(error: BaseException) -> bool:
    """Whether the server may still work on a call that ended so: the caller left before the answer was complete."""
    return isinstance(error, DeadlineExceeded | Cancelled) or not isinstance(error, OrthrusError)


def _kind(message: str) -> type[OrthrusError] | None:
    """The error whose word a message begins with."""
    begins = _BEGINNING.match(message)
    return None if begins is None else _BY_BEGINNING[begins[1]]


def deadline_error(timeout: float | None) -> DeadlineExceeded:
    """The error of a call that was not finished `timeout` seconds after it began."""
    return DeadlineExceeded(f"not finished within {timeout} s")
