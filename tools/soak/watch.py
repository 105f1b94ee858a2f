"""What a server holds and counts, seen from outside: its metrics, and the memory of its processes."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

SETTLE_SECONDS = 15.0  # the server publishes its counters a moment after it has answered


@dataclass(frozen=True, slots=True)
class State:
    """One look at the metrics, summed over kinds and instances."""

    received: int
    ended: Counter[str]  # by outcome
    open: int  # requests running or waiting
    used_blocks: int
    least: float  # the smallest value of any metric

    @property
    def balanced(self) -> bool:
        """Whether everything received has ended, and left nothing."""
        return self.received == self.ended.total() and self.open == self.used_blocks == 0 <= self.least


def look(address: str) -> State:
    """The state of the server whose metrics are at `address` (host:port). Raises `httpx2.HTTPError`."""
    received = opened = used = 0
    least, ended = 0.0, Counter[str]()
    page = httpx2.get(f"http://{address}/metrics").raise_for_status().text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.startswith("orthrus_"):
                continue
            least, value = min(least, sample.value), int(sample.value)
            match sample.name:
                case "orthrus_requests_received_total":
                    received += value
                case "orthrus_requests_total":
                    ended[sample.labels["outcome"]] += value
                case "orthrus_requests_running" | "orthrus_requests_waiting":
                    opened += value
                case "orthrus_kv_blocks" if sample.labels["state"] == "used":
                    used += value
    return State(received, ended, opened, used, least)


def settled(address: str) -> State:
    """The state once everything has ended, or what it is `SETTLE_SECONDS` later."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while not (state := look(address)).balanced and time.monotonic() < give_up:
        time.sleep(0.2)
    return state


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Memory that these processes hold, without what they share (Linux: unique set size)."""
    return sum(process.memory_full_info().uss for process in processes)
