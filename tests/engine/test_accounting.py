"""The ledger: what came in is what ended, by outcome, whatever ended it. Gauges tell of now: of nothing when idle."""

import random
import time
from collections import Counter

import pytest

from orthrus_backend.accounting import show_adapters
from orthrus_backend.engine import Engine, EngineClosedError
from orthrus_backend.metrics import FAMILIES, Metrics
from orthrus_backend.request import Kind, Outcome, Request
from tests.engine.test_engine import send, started
from tests.engine.tiny import embed, generate, random_ids

ENDS = {
    Outcome.STOP: "finished",
    Outcome.LENGTH: "finished",
    Outcome.EMBEDDED: "finished",
    Outcome.CANCELLED: "cancelled",
    Outcome.TIMEOUT: "timeout",
    Outcome.FAILED: "failed",
}


def received(engine: Engine) -> Counter[str]:
    return Counter(
        {
            dict(labels)["kind"]: int(value)
            for (name, labels), value in engine.metrics.counters.items()
            if name == "orthrus_requests_received_total"
        }
    )


def ended(engine: Engine) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (dict(labels)["kind"], dict(labels)["outcome"]): int(value)
            for (name, labels), value in engine.metrics.counters.items()
            if name == "orthrus_requests_total" and value
        }
    )


def some_requests(draw: random.Random, count: int) -> list[Request]:
    requests: list[Request] = []
    for n in range(count):
        length = draw.randint(1, 60)
        ids = random_ids(length, n)
        requests.append(embed(ids) if draw.random() < 0.5 else generate(ids, 20))
        if draw.random() < 0.2:
            requests[-1].deadline = time.monotonic() + draw.random() * 0.2
    return requests


def check(engine: Engine, requests: list[Request]) -> None:
    assert received(engine) == Counter(request.kind for request in requests)
    assert ended(engine) == Counter((r.kind, ENDS[r.outcome]) for r in requests if r.outcome is not None)
    assert received(engine).total() == ended(engine).total()
    for (name, labels), value in engine.metrics.gauges.items():
        stays = (name == "orthrus_kv_blocks" and ("state", "used") not in labels) or name == "orthrus_adapter_loaded"
        assert value == 0 or stays, f"{name} {labels} is {value} with nothing to do"


@pytest.mark.parametrize("seed", range(3))
def test_the_ledger_balances_under_cancels_and_deadlines(seed: int) -> None:
    draw = random.Random(seed)
    engine, _ = started(lambda step: time.sleep(0.002), token_budget=40, max_running=4)
    requests = some_requests(draw, 60)
    for request in requests:
        send(engine, request)
        for _ in range(draw.choice([0, 0, 1, 2])):
            engine.cancel(draw.choice(requests))
    assert all(value >= 0 for value in engine.metrics.gauges.values())
    engine.close(timeout=20)
    assert {"finished", "cancelled", "timeout"} <= {end for _, end in ended(engine)}
    check(engine, requests)


def test_the_ledger_balances_after_a_failed_step() -> None:
    def fail(step: int) -> None:
        if step == 12:
            raise RuntimeError("no memory left")

    engine, _ = started(fail, token_budget=40, max_running=4)
    accepted = []
    for request in some_requests(random.Random(7), 60):
        try:
            send(engine, request)
        except EngineClosedError:
            continue
        accepted.append(request)
    engine.close()
    assert "failed" in {end for _, end in ended(engine)}
    check(engine, accepted)


def test_tokens_steps_and_fill_are_those_of_the_steps() -> None:
    fills: list[float] = []
    engine, _ = started(lambda step: fills.append(engine.metrics.gauges["orthrus_batch_fill", ()]), token_budget=40)
    send(engine, embed(random_ids(30, 1)))[0].outcome()
    send(engine, generate(random_ids(7, 1), 5))[0].outcome()
    engine.close(timeout=20)
    counters = engine.metrics.counters
    tokens = {dict(labels)["kind"]: n for (name, labels), n in counters.items() if name == "orthrus_tokens_total"}
    assert tokens == {"embed": 30, "prefill": 7, "decode": 4}
    steps = {dict(labels)["composition"]: n for (name, labels), n in counters.items() if name == "orthrus_steps_total"}
    assert steps == {"embed": 1, "generate": 5, "mixed": 0}
    assert fills == [0, 0, 7 / 40, 1 / 40, 1 / 40, 1 / 40]
    assert engine.metrics.gauges["orthrus_batch_fill", ()] == 0


def test_adapters_are_shown_while_they_are_there() -> None:
    metrics = Metrics()
    for names, shown in (((), {"": 1}), (("a", "b"), {"": 1, "a": 1, "b": 1}), (["b"], {"": 1, "a": 0, "b": 1})):
        show_adapters(metrics, names)
        assert {labels[0][1]: value for (_, labels), value in metrics.gauges.items()} == shown


def test_every_name_is_a_family_and_every_family_is_published_from_the_start() -> None:
    engine, _ = started()
    metrics = engine.metrics
    names = {name for name, _ in [*metrics.counters, *metrics.gauges, *metrics.histograms]}
    assert names == {family.name for family in FAMILIES}
    expected = set(metrics.histograms)
    send(engine, embed(random_ids(30, 1)), generate(random_ids(7, 1), 5))
    engine.close(timeout=20)
    assert {(name, labels) for name, labels, _ in metrics.take_observations()} <= expected
    assert {name for name, _ in [*metrics.counters, *metrics.gauges]} <= names
    assert all(kind in str(metrics.gauges) for kind in Kind)
