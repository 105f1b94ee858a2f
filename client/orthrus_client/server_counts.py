"""`ServerCounts`: what an Orthrus server has done so far, and its adapters, read from its Prometheus endpoint."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Self

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    raise ImportError(
        "orthrus_client.server_counts needs prometheus-client: pip install 'orthrus-client[gateway]'"
    ) from error


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counters of a server, summed over its instances; keys are label values. `adapters`: those that it has now."""

    requests: Counter[str]  # finished, by kind
    tokens: Counter[str]  # embed | prefill | decode
    steps: Counter[str]  # embed | generate | mixed
    adapters: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, page: str) -> Self:
        """From what GET /metrics answers. Raises `ValueError` if it is something else."""
        counts = cls(Counter(), Counter(), Counter())
        chosen = {
            "orthrus_requests_total": (counts.requests, "kind"),
            "orthrus_tokens_total": (counts.tokens, "kind"),
            "orthrus_steps_total": (counts.steps, "composition"),
        }
        adapters = set()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name in chosen and sample.labels.get("outcome", "finished") == "finished":
                    counter, label = chosen[sample.name]
                    counter[sample.labels[label]] += int(sample.value)
                if sample.name == "orthrus_adapter_loaded" and sample.value:
                    adapters.add(sample.labels.get("adapter", ""))
        return replace(counts, adapters=frozenset(filter(None, adapters)))  # without a name: the model alone

    def __sub__(self, other: "ServerCounts") -> "ServerCounts":
        """What was counted since `other`."""
        return replace(
            self,
            requests=self.requests - other.requests,
            tokens=self.tokens - other.tokens,
            steps=self.steps - other.steps,
        )
