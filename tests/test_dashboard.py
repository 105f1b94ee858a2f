"""The Grafana dashboard asks only for what a server publishes, and shows all that the engine does."""

import json
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from orthrus_backend.metrics import FAMILIES
from tests.serving import RunningServer

FILE = Path(__file__).parent.parent / "docker" / "grafana" / "dashboards" / "orthrus.json"
GRAFANA = {"$__rate_interval": "1m", "$engine": ".*"}
ROWS = ["Traffic", "Latency", "Batch composition", "Cache and memory", "Errors"]
PANELS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
TARGETS = [target for panel in GRAPHS for target in panel["targets"]]


def parsed(target: dict[str, Any]) -> list[Any]:
    """All parts of a query, each before the parts that it is made of."""
    query = target["expr"]
    for name, value in GRAFANA.items():
        query = query.replace(name, value)
    nodes: list[Any] = []
    promql_parser.walk(promql_parser.parse(query), nodes.append)
    return nodes


def selectors(target: dict[str, Any]) -> list[Any]:
    return [node for node in parsed(target) if isinstance(node, promql_parser.VectorSelector)]


def grouped_by(target: dict[str, Any]) -> set[str]:
    groups = [n.modifier.labels for n in parsed(target) if isinstance(n, promql_parser.AggregateExpr) and n.modifier]
    return {label for labels in groups for label in labels}


@pytest.fixture(scope="module")
def published(server: RunningServer) -> dict[str, dict[str, set[str]]]:
    """Of each sample on the server's page, its labels and their values."""
    page = requests.get(f"http://{server.metrics}/metrics", timeout=10).text
    samples: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            for label, value in sample.labels.items():
                samples[sample.name][label].add(value)
            samples[sample.name].setdefault("", set())
    return samples


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"][:80])
def test_a_query_names_only_what_a_server_publishes(
    target: dict[str, Any], published: dict[str, dict[str, set[str]]]
) -> None:
    found = selectors(target)
    assert found
    for selector in found:
        assert selector.name in published
        labels = published[selector.name]
        assert grouped_by(target) <= set(labels)
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels
            assert matcher.value in labels[matcher.name] | set(GRAFANA.values())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"][:80])
def test_a_query_makes_sense(target: dict[str, Any]) -> None:
    types = {family.name: family.type for family in FAMILIES}
    rated = {n.vector_selector.name for n in parsed(target) if isinstance(n, promql_parser.MatrixSelector)}
    for name in {selector.name for selector in selectors(target)}:
        family = re.sub("_(bucket|sum|count)$", "", name)
        grows = types.get(name, types.get(family)) in ("counter", "histogram")
        assert (name in rated) == grows or title_of(target) == "Requests not ended yet"  # counter less counter
    for node in parsed(target):
        if isinstance(node, promql_parser.Call) and node.func.name == "histogram_quantile":
            assert "le" in grouped_by(target)
            assert all(selector.name.endswith("_bucket") for selector in selectors(target))
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert shown <= grouped_by(target) | {"engine"}
    assert grouped_by(target) - {"le"} <= shown, "two lines would have the same name"


def title_of(target: dict[str, Any]) -> str:
    return next(str(panel["title"]) for panel in GRAPHS if target in panel["targets"])


def test_every_metric_of_the_engine_is_shown() -> None:
    shown = {re.sub("_(bucket|sum|count)$", "", selector.name) for t in TARGETS for selector in selectors(t)}
    assert {family.name for family in FAMILIES} <= shown


def test_rows_and_panels_have_their_places_titles_and_units() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ROWS
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in GRAPHS}) == len(GRAPHS)
    for panel in GRAPHS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
    for one, other in combinations((panel["gridPos"] for panel in PANELS), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
        assert one["x"] + one["w"] <= 24
