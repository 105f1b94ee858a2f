"""Whether the engine answers: one token is generated. What has an open port, or is ready for Triton, may not answer."""

import asyncio
import time

from orthrus_client import AsyncOrthrusClient
from orthrus_client.errors import OrthrusError

KEEP_SECONDS = 1.0
TIMEOUT = 5.0


class Health:
    """Asks the engine at most once in `KEEP_SECONDS`, however often it is asked itself."""

    def __init__(self, client: AsyncOrthrusClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._asked_at = -KEEP_SECONDS
        self._error: OrthrusError | None = None

    async def check(self) -> None:
        """Raises the `OrthrusError` that the engine, or the way to it, answers with."""
        async with self._lock:
            if time.monotonic() >= self._asked_at + KEEP_SECONDS:
                try:
                    await self._client.generate("ok", max_tokens=1, temperature=0.0, timeout=TIMEOUT)
                    self._error = None
                except OrthrusError as error:
                    self._error = error
                self._asked_at = time.monotonic()
        if self._error is not None:
            raise self._error
