"""The API key: whoever asks below /v1 or /demo must send it. Looks at headers only, before a body is read."""

import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from orthrus_client.gateway.errors import ApiError

PROTECTED = ("/v1", "/demo")


class ApiKey:
    """Lets requests through that carry `key` as their bearer token."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PROTECTED) and not self._allows(Headers(scope=scope)):
            await self._refusal()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        same = secrets.compare_digest(token.strip().encode("latin-1"), self._key)  # takes as long for every token
        return same and scheme.lower() == "bearer"

    def _refusal(self) -> ASGIApp:
        message = "no or no valid API key: send it as 'Authorization: Bearer KEY'"
        return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}).response()
