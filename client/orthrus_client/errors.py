"""The errors a call may end with, and how gRPC's and HTTP's status codes become them.

Triton's HTTP generate endpoints answer 400 to every error of the model, and its gRPC streams have no code at all. The
server therefore begins the message of an overload with `OVERLOAD`, and that is what is looked for here.
"""

import re
from http import HTTPStatus

import grpc

OVERLOAD = "unavailable: "
INTERNAL = "internal error: "
_ENSEMBLE = r"(?:in ensemble '[^']*', )?"  # what Triton puts before the message of an ensemble's step


class OrthrusError(Exception):
    """A call failed; raised itself only for what the server calls an internal or unknown error."""


class InvalidRequest(OrthrusError):  # noqa: N818
    """The server refuses this request and would refuse it again; the message names what is wrong with it."""


class Unavailable(OrthrusError):  # noqa: N818
    """Nobody answers there, or the server is overloaded or not ready: the same call may succeed later."""


class DeadlineExceeded(OrthrusError):  # noqa: N818
    """The call's `timeout` passed. The server was told to stop working on it."""


class Cancelled(OrthrusError):  # noqa: N818
    """The call was cancelled by somebody else than its caller, e.g. by a server that shuts down."""


_BY_GRPC_CODE: dict[grpc.StatusCode, type[OrthrusError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}

_BY_HTTP_STATUS: dict[int, type[OrthrusError]] = {
    HTTPStatus.BAD_REQUEST: InvalidRequest,
    HTTPStatus.NOT_FOUND: InvalidRequest,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidRequest,
    HTTPStatus.NOT_IMPLEMENTED: InvalidRequest,
    HTTPStatus.TOO_MANY_REQUESTS: Unavailable,
    HTTPStatus.BAD_GATEWAY: Unavailable,
    HTTPStatus.SERVICE_UNAVAILABLE: Unavailable,
    HTTPStatus.GATEWAY_TIMEOUT: DeadlineExceeded,
    499: Cancelled,  # Triton's own
}


def grpc_error(error: grpc.RpcError, timeout: float | None) -> OrthrusError:
    """The error behind a gRPC call that failed, of either of gRPC's two APIs."""
    code: grpc.StatusCode = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout is not None:
        return deadline_error(timeout)
    return _BY_GRPC_CODE.get(code, OrthrusError)(error.details() or code.name)


def uncoded_error(message: str) -> OrthrusError:
    """The error behind a text alone."""
    if re.match(_ENSEMBLE + OVERLOAD, message):
        return Unavailable(message)
    if re.match(_ENSEMBLE + INTERNAL, message):
        return OrthrusError(message)
    return InvalidRequest(message)


def http_error(status: int, message: str) -> OrthrusError:
    """The error behind an HTTP status; an error in the middle of a stream comes with the stream's own, 200."""
    if status == HTTPStatus.BAD_REQUEST or re.match(_ENSEMBLE + OVERLOAD, message):
        return uncoded_error(message)
    return _BY_HTTP_STATUS.get(status, OrthrusError)(message or f"HTTP status {status}")


def deadline_error(timeout: float | None) -> DeadlineExceeded:
    """The error of a call that was not finished `timeout` seconds after it began."""
    return DeadlineExceeded(f"not finished within {timeout} s")
