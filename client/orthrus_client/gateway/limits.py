"""The size of a request's body. FastAPI counts what it reads; what is declared to be too large is not read at all."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from orthrus_client.gateway.errors import ApiError


def limit_body(app: FastAPI, limit: int) -> ASGIApp:
    """`app`, whose own `max_body_size` is `limit`, with OpenAI's form of the error."""
    error = ApiError(413, f"the body is larger than {limit} bytes, which is the limit", code="request_too_large")

    async def refuse(_: Request, __: Exception) -> JSONResponse:
        return error.response()

    app.add_exception_handler(error.status, refuse)
    return _DeclaredSize(app, limit, error)


class _DeclaredSize:
    """Stands before FastAPI's own check, whose error for a declared size is plain text."""

    def __init__(self, app: ASGIApp, limit: int, error: ApiError) -> None:
        self._app, self._limit, self._error = app, limit, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if length.isdecimal() and int(length) > self._limit:
            await self._error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)
