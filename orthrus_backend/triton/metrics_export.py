"""Publishes the engine's metrics through Triton's own endpoint, from a thread of its own.

Each operation on a Triton metric is a message to another process; hence differences, twice a second.
"""

import logging
import threading
from typing import Any

import triton_python_backend_utils as pb_utils

from orthrus_backend.metrics import FAMILIES, Family, Labels, Metrics

INTERVAL_SECONDS = 0.5
_log = logging.getLogger(__name__)


class MetricsExport:
    """Keeps Triton's metrics equal to the engine's.

    Every metric carries the label `engine`, since the engines of a server share its endpoint. It is not called
    `instance`, as Triton calls an engine, because Prometheus gives that name to the server.
    """

    def __init__(self, metrics: Metrics, engine: str) -> None:
        self._metrics = metrics
        self._engine = engine
        self._families = {family.name: (family, _triton_family(family)) for family in FAMILIES}
        self._series: dict[tuple[str, Labels], Any] = {}
        self._published: dict[tuple[str, Labels], float] = {}
        for key in metrics.histograms:
            self._series_of(*key)
        self._closing = threading.Event()
        self._publish()
        self._thread = threading.Thread(target=self._run, name="orthrus-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish once more and stop."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(INTERVAL_SECONDS):
            self._publish()
        self._publish()

    def _publish(self) -> None:
        try:
            for key, value in list(self._metrics.counters.items()):
                if (delta := value - self._published.get(key, 0.0)) > 0 or key not in self._published:
                    self._series_of(*key).increment(delta)
                    self._published[key] = value
            for key, value in list(self._metrics.gauges.items()):
                if value != self._published.get(key):
                    self._series_of(*key).set(value)
                    self._published[key] = value
            for name, labels, value in self._metrics.take_observations():
                self._series_of(name, labels).observe(value)
        except pb_utils.TritonModelException:
            _log.exception("metrics could not be published")

    def _series_of(self, name: str, labels: Labels) -> Any:
        if (name, labels) not in self._series:
            family, triton_family = self._families[name]
            keywords: dict[str, Any] = {"labels": {**dict(labels), "engine": self._engine}}
            if family.type == "histogram":
                keywords["buckets"] = list(family.buckets)
            self._series[name, labels] = triton_family.Metric(**keywords)
        return self._series[name, labels]


def _triton_family(family: Family) -> Any:
    kinds = {
        "counter": pb_utils.MetricFamily.COUNTER,
        "gauge": pb_utils.MetricFamily.GAUGE,
        "histogram": pb_utils.MetricFamily.HISTOGRAM,
    }
    return pb_utils.MetricFamily(name=family.name, description=family.help, kind=kinds[family.type])
