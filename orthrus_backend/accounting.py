"""Turns what happens to requests into metrics. `Accounting` runs on the engine's thread, a few additions a step."""

from collections.abc import Collection, Sequence
from typing import Literal, get_args

from orthrus_backend.metrics import Metrics
from orthrus_backend.outputs import Output
from orthrus_backend.plan import Plan, Role
from orthrus_backend.request import GenerateRequest, Kind, Outcome, Request
from orthrus_backend.scheduling.scheduler import Scheduler

End = Literal["finished", "failed", "cancelled", "timeout", "refused"]
ENDS: dict[Outcome, End] = {
    Outcome.STOP: "finished",
    Outcome.LENGTH: "finished",
    Outcome.EMBEDDED: "finished",
    Outcome.CANCELLED: "cancelled",
    Outcome.TIMEOUT: "timeout",
    Outcome.FAILED: "failed",
}
_ADAPTERS = "orthrus_adapter_loaded"
_QUERIES, _HITS = "orthrus_prefix_cache_queries_total", "orthrus_prefix_cache_hits_total"
_ROLES = {Role.EMBED: "embed", Role.PREFILL: "prefill", Role.DECODE: "decode"}


class Accounting:
    """Counts requests, tokens and steps; reads gauges off the scheduler."""

    def __init__(self, metrics: Metrics, scheduler: Scheduler) -> None:
        self._metrics = metrics
        self._scheduler = scheduler
        self._preemptions = 0
        self._queried = dict.fromkeys(Kind, 0)
        self._hits = dict.fromkeys(Kind, 0)
        for kind in Kind:  # published as zeros from the start, so that rates have a first sample
            metrics.count("orthrus_requests_received_total", 0, kind=kind)
            metrics.count(_QUERIES, 0, kind=kind)
            metrics.count(_HITS, 0, kind=kind)
            for end in get_args(End):
                metrics.count("orthrus_requests_total", 0, kind=kind, outcome=end)
            metrics.expect("orthrus_request_seconds", kind=kind)
            metrics.expect("orthrus_queue_seconds", kind=kind)
        for role in _ROLES.values():
            metrics.count("orthrus_tokens_total", 0, kind=role)
        for composition in ("embed", "generate", "mixed"):
            metrics.count("orthrus_steps_total", 0, composition=composition)
            metrics.expect("orthrus_step_seconds", composition=composition)
        metrics.expect("orthrus_time_to_first_token_seconds")
        metrics.expect("orthrus_inter_token_seconds")
        metrics.count("orthrus_preemptions_total", 0)
        show_adapters(metrics, ())
        self._gauges()
        self.idle()

    def received(self, requests: Sequence[Request]) -> None:
        """Requests were accepted."""
        for request in requests:
            self._metrics.count("orthrus_requests_received_total", kind=request.kind)
        self._gauges()

    def step(self, plan: Plan, outputs: Sequence[Output], started: float, ended: float) -> None:
        """A step is done. Times are seconds of `time.monotonic`."""
        metrics = self._metrics
        metrics.count("orthrus_steps_total", composition=plan.composition)
        metrics.observe("orthrus_step_seconds", ended - started, composition=plan.composition)
        for role, tokens in plan.tokens_by_role().items():
            metrics.count("orthrus_tokens_total", tokens, kind=_ROLES[role])
        metrics.set("orthrus_batch_fill", plan.tokens / self._scheduler.settings.token_budget)
        metrics.count("orthrus_preemptions_total", self._scheduler.preemptions - self._preemptions)
        self._preemptions = self._scheduler.preemptions
        self._prefixes()
        for s in plan.slices:
            request = s.request
            if request.first_scheduled == started:
                metrics.observe("orthrus_queue_seconds", started - request.arrival, kind=request.kind)
            if isinstance(request, GenerateRequest) and request.first_token_at == ended:
                metrics.observe("orthrus_time_to_first_token_seconds", ended - request.arrival)
        self.ended(outputs, ended)

    def ended(self, outputs: Sequence[Output], now: float) -> None:
        """Count the requests that these outputs end."""
        for output in outputs:
            if not output.final:
                continue
            request, metrics = output.request, self._metrics
            kind = request.kind
            assert request.outcome is not None
            metrics.count("orthrus_requests_total", kind=kind, outcome=ENDS[request.outcome])
            metrics.observe("orthrus_request_seconds", now - request.arrival, kind=kind)
            if isinstance(request, GenerateRequest) and request.produced > 1 and request.first_token_at is not None:
                assert request.last_token_at is not None
                gap = (request.last_token_at - request.first_token_at) / (request.produced - 1)
                metrics.observe("orthrus_inter_token_seconds", gap)
        self._gauges()

    def idle(self) -> None:
        """There is no work."""
        self._metrics.set("orthrus_batch_fill", 0)

    def _prefixes(self) -> None:
        if (prefixes := self._scheduler.prefixes) is None:
            return
        for kind in Kind:
            self._metrics.count(_QUERIES, prefixes.queried[kind] - self._queried[kind], kind=kind)
            self._metrics.count(_HITS, prefixes.hits[kind] - self._hits[kind], kind=kind)
        self._queried, self._hits = dict(prefixes.queried), dict(prefixes.hits)

    def _gauges(self) -> None:
        metrics, scheduler = self._metrics, self._scheduler
        for kind, queue in scheduler.queues.items():
            started = sum(1 for head in (queue.head,) if head is not None and head.computed)
            running = started + (len(scheduler.running) if kind is Kind.GENERATE else 0)
            metrics.set("orthrus_requests_running", running, kind=kind)
            metrics.set("orthrus_requests_waiting", len(queue) - started, kind=kind)
            metrics.set("orthrus_queue_tokens", queue.tokens, kind=kind)
        pool = scheduler.pool
        metrics.set("orthrus_kv_blocks", pool.used, state="used")
        metrics.set("orthrus_kv_blocks", pool.cached, state="cached")
        metrics.set("orthrus_kv_blocks", pool.free, state="free")


def count_turned_away(metrics: Metrics, kind: Kind, end: End) -> None:
    """Count a call that never became requests of the engine: it came in, and that was its end. Any thread."""
    metrics.count("orthrus_requests_received_total", kind=kind)
    metrics.count("orthrus_requests_total", kind=kind, outcome=end)


def show_adapters(metrics: Metrics, names: Collection[str]) -> None:
    """Tell which adapters there are now; those that were there before stay as zeros. Any thread, but one at a time."""
    before = [labels[0][1] for name, labels in list(metrics.gauges) if name == _ADAPTERS]
    for adapter in {"", *before, *names}:
        metrics.set(_ADAPTERS, float(adapter in names or not adapter), adapter=adapter)
