"""Reads what a server says about itself on its Prometheus endpoint."""

import time
from collections import Counter
from dataclasses import dataclass

import httpx2
from prometheus_client.parser import text_string_to_metric_families

SETTLE_SECONDS = 10.0  # the server publishes its counters a moment after it has answered


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of a server, summed over its instances; keys are label values."""

    requests: Counter[str]  # finished, by kind
    tokens: Counter[str]  # embed | prefill | decode
    steps: Counter[str]  # embed | generate | mixed

    def __sub__(self, other: "Counts") -> "Counts":
        """What was counted since `other`."""
        return Counts(self.requests - other.requests, self.tokens - other.tokens, self.steps - other.steps)


def read_counts(address: str) -> Counts:
    """The counters of the server whose metrics are at `address` (host:port). Raises `httpx2.HTTPError`."""
    counts = Counts(Counter(), Counter(), Counter())
    chosen = {
        "orthrus_requests_total": (counts.requests, "kind"),
        "orthrus_tokens_total": (counts.tokens, "kind"),
        "orthrus_steps_total": (counts.steps, "composition"),
    }
    page = httpx2.get(f"http://{address}/metrics").raise_for_status().text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in chosen and sample.labels.get("outcome", "finished") == "finished":
                counter, label = chosen[sample.name]
                counter[sample.labels[label]] += int(sample.value)
    return counts


def counts_since(address: str, before: Counts, requests: int) -> Counts:
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
