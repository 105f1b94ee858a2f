"""Asks a server for its counters."""

import time

import httpx2
from orthrus_client.server_counts import ServerCounts

SETTLE_SECONDS = 10.0  # the server publishes its counters a moment after it has answered


def read_counts(address: str) -> ServerCounts:
    """The counters of the server whose metrics are at `address` (host:port). Raises `httpx2.HTTPError`."""
    return ServerCounts.parse(httpx2.get(f"http://{address}/metrics").raise_for_status().text)


def counts_since(address: str, before: ServerCounts, requests: int) -> ServerCounts:
    """What was counted since `before`, once `requests` are among it.

    Raises:
        RuntimeError: they are not, `SETTLE_SECONDS` later.
    """
    give_up = time.monotonic() + SETTLE_SECONDS
    while (counts := read_counts(address) - before).requests.total() < requests:
        if time.monotonic() > give_up:
            raise RuntimeError(
                f"the server counts {counts.requests.total()} finished requests, but answered {requests}"
            )
        time.sleep(0.1)
    return counts
