"""Errors in OpenAI's form, {"error": {"message", "type", "param", "code"}}, and the status that goes with each."""

import logging
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from openai.types.shared import ErrorObject
from starlette.exceptions import HTTPException

from orthrus_client.errors import Cancelled, DeadlineExceeded, InvalidRequest, OrthrusError, Unavailable

RETRY_AFTER = "1"  # seconds, for who is turned away
_WHERE = r"^(?:in ensemble '[^']*', )?(?:(?:sampling|embedding)_parameters: (?=(\w+)))?"  # in the server's own terms
_UNKNOWN_ADAPTER = "unknown adapter "  # requests name adapters as models: NAME:ADAPTER
_SHOWN_FAULTS = 4  # a value that fits no member of a union has a fault for each of them

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """A refusal or a failure with its HTTP status; `param` names the field of the request that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    def body(self) -> dict[str, Any]:
        """The JSON document; what UTF-8 cannot hold (a lone surrogate of the request) is escaped in it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        fields = ErrorObject(message=self.message, type=kind, param=self.param, code=self.code).model_dump()
        return {"error": {name: value and _printable(value) for name, value in fields.items()}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is refused and would be refused again."""
    return ApiError(400, message, param=param, code=code)


def api_error(error: Exception) -> ApiError:
    """What a caller is told of an error, whoever raised it."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _invalid_body(error.errors(), error.body)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case InvalidRequest():
            where, message = re.match(_WHERE, str(error)), re.sub(_WHERE, "", str(error))
            if message.startswith(_UNKNOWN_ADAPTER):
                return ApiError(404, message, param="model", code="model_not_found")
            return invalid(message, where and where[1])
        case DeadlineExceeded():
            return ApiError(504, str(error), code="timeout")
        case Unavailable() | Cancelled():
            headers = {"Retry-After": RETRY_AFTER}
            return ApiError(503, re.sub(_WHERE, "", str(error)), code="unavailable", headers=headers)
        case OrthrusError():
            logger.error("the server failed: %s", error)
        case _:
            logger.error("a request failed", exc_info=error)
    return ApiError(500, "internal error; the log of the gateway or of the server says more", code="internal_error")


def add_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` leave in OpenAI's form."""
    for kind in (ApiError, OrthrusError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(_: Request, error: Exception) -> JSONResponse:
    return api_error(error).response()


def _invalid_body(faults: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """Names the first field that is wrong, its value, and what it might have been."""
    first = faults[0]
    if first["type"] == "json_invalid":
        return invalid(f"the body is not valid JSON: {first['ctx']['error']} (character {first['loc'][1]})")
    # Of a union's faults, those tell more whose member the value has the type of.
    faults = sorted(faults, key=lambda fault: fault["type"].endswith("_type"))
    places = [_place(fault["loc"][1:], body) for fault in faults]  # without "body"
    param = places[0].partition(".")[0]
    lines = [
        f"{place or 'body'}: {fault['msg']}, got {reprlib.repr(fault['input'])}"
        for place, fault in zip(places, faults, strict=True)
        if place.partition(".")[0] == param
    ]
    return invalid("; ".join(lines[:_SHOWN_FAULTS]), param or None)


def _place(location: Sequence[str | int], value: Any) -> str:
    """Where in a document a fault lies, without the names that pydantic gives to the members of a union."""
    kept = []
    for part in location:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]  # type: ignore[index]  # an int for a list
        elif part != location[-1] or not isinstance(value, dict):
            continue  # the last one may be a field that is missing
        kept.append(str(part))
    return ".".join(kept)


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
