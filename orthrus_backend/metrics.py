"""What the engine counts, and the names under which it is published.

The engine adds to plain numbers; a publisher takes the difference from time to time. Knows no publishing format.

The ledger, for each kind: requests received = finished + failed + cancelled + timeout + refused, once nothing runs or
waits. A request is one text to embed or one continuation; a call that is refused before it becomes requests counts as
one. What Triton itself turns away, such as a wrong data type, never gets here.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]

_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)


@dataclass(frozen=True, slots=True)
class Family:
    """One published metric. Histogram buckets are vLLM's, so that dashboards carry over."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    buckets: tuple[float, ...] = ()


FAMILIES = (
    Family("orthrus_requests_received_total", "counter", "Requests that came in, by kind (embed, generate)"),
    Family(
        "orthrus_requests_total",
        "counter",
        "Requests ended, by kind and outcome (finished, failed, cancelled, timeout, refused)",
    ),
    Family("orthrus_tokens_total", "counter", "Tokens computed, by kind (embed, prefill, decode)"),
    Family("orthrus_steps_total", "counter", "Steps run, by composition (embed, generate, mixed)"),
    Family("orthrus_preemptions_total", "counter", "Requests that lost their blocks and started over"),
    Family(
        "orthrus_prefix_cache_queries_total", "counter", "Tokens of requests looked up in the prefix cache, by kind"
    ),
    Family("orthrus_prefix_cache_hits_total", "counter", "Tokens found there and not computed again, by kind"),
    Family("orthrus_requests_running", "gauge", "Requests with some but not all tokens computed, by kind"),
    Family("orthrus_requests_waiting", "gauge", "Requests with no token computed yet, by kind"),
    Family("orthrus_queue_tokens", "gauge", "Tokens waiting to be scheduled, by kind"),
    Family("orthrus_kv_blocks", "gauge", "Key/value blocks, by state (used, cached, free)"),
    Family(
        "orthrus_adapter_loaded", "gauge", "1 while requests may name the adapter, else 0; no name: the model alone"
    ),
    Family("orthrus_batch_fill", "gauge", "Tokens of the last step over the token budget; 0 while there is no work"),
    Family("orthrus_time_to_first_token_seconds", "histogram", "Arrival to first token", _FIRST_TOKEN),
    Family("orthrus_inter_token_seconds", "histogram", "Mean time between tokens, one value a generation", _PER_TOKEN),
    Family("orthrus_request_seconds", "histogram", "Arrival to last answer, by kind", _LATENCY),
    Family("orthrus_queue_seconds", "histogram", "Arrival to first step, by kind", _LATENCY),
    Family("orthrus_step_seconds", "histogram", "Duration of a step, by composition", _PER_TOKEN),
)


class Metrics:
    """Numbers of one engine. Written by any thread, read by one publisher."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # adding is a read and a write
        self.counters: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self.gauges: dict[tuple[str, Labels], float] = {}
        self.histograms: set[tuple[str, Labels]] = set()  # those published before they have a value
        self._observations: deque[Sample] = deque(maxlen=100_000)  # bounded where nobody publishes

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self.counters[name, tuple(labels.items())] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.gauges[name, tuple(labels.items())] = value

    def expect(self, name: str, **labels: str) -> None:
        """Publish a histogram without a value, so that rates have a first sample."""
        self.histograms.add((name, tuple(labels.items())))

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one value to a histogram."""
        self._observations.append((name, tuple(labels.items()), value))

    def take_observations(self) -> Iterable[Sample]:
        """All values observed since the last call."""
        while self._observations:
            yield self._observations.popleft()
