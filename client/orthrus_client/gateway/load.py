"""`Load`: what the server has computed, by kind, and which adapters it has, from one second to the next."""

import asyncio
import time
from dataclasses import dataclass

import httpx2

from orthrus_client.server_counts import ServerCounts

INTERVAL_SECONDS = 1.0  # the server publishes its counters twice a second
TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at a time (of `time.monotonic`), or None: they could not be read."""

    at: float
    counts: ServerCounts | None


class Load:
    """Reads the server's metrics once in an interval, however many pages watch."""

    def __init__(self, address: str, client: httpx2.AsyncClient) -> None:
        """Reads from `address`, host:port of Triton's metrics."""
        self._url = f"http://{address}/metrics"
        self._client = client
        self._lock = asyncio.Lock()
        self._latest: Reading | None = None

    async def read(self) -> Reading:
        """The latest reading, which is at most an interval old."""
        async with self._lock:
            if self._latest is None or time.monotonic() >= self._latest.at + 0.9 * INTERVAL_SECONDS:
                counts = await self._counts()
                self._latest = Reading(time.monotonic(), counts)
            return self._latest

    async def _counts(self) -> ServerCounts | None:
        try:
            answer = await self._client.get(self._url, timeout=TIMEOUT)
            counts = ServerCounts.parse(answer.raise_for_status().text)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
            return None
        return counts if counts.tokens else None  # without it, these are the metrics of something else
