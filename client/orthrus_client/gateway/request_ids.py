"""The id of each request: its client's own `X-Request-Id` or a new one, told in the answer and in the server's log."""

import re
import secrets
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orthrus_client.gateway.errors import invalid

HEADER = "X-Request-Id"
LENGTH = 100  # characters; the server's log keeps 128
_VALID = re.compile(f"[!-~]{{1,{LENGTH}}}")


class RequestIds:
    """Stands before everything else, so that refusals have an id too.

    The server ends all that carries the id of a request that is left by its client. So that nobody ends what is another
    client's, an id that is in use is given to a second request only with something added to it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._in_use: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        if given is not None and not _VALID.fullmatch(given):
            message = f"{HEADER} is to be 1 to {LENGTH} printable ASCII characters without spaces"
            await invalid(message, HEADER).response()(scope, receive, send)
            return
        request_id = given or uuid4().hex
        if request_id in self._in_use:
            request_id = f"{request_id}-{secrets.token_hex(8)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        self._in_use.add(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._in_use.discard(request_id)


def request_id_of(request: HTTPConnection) -> str:
    """The id that a request was given."""
    return str(request.state.request_id)
