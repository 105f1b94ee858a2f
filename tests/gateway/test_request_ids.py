"""What a request carries through the gateway to the server beside its words: its id, and whose trace it belongs to."""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from orthrus_client.gateway.request_ids import LENGTH

from tests.collector import Collector
from tests.gateway.serving import RunningGateway
from tests.gateway.test_refusals import error
from tests.server.test_observability import context, lines, named
from tests.serving import RunningServer

USER: Any = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "Hi", "max_tokens": 2},
    "chat/completions": {"messages": USER, "max_tokens": 2, "stream": True},
    "embeddings": {"input": "Hi"},
}
LONG: Any = {"prompt": "Once", "stream": True, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with gateway.http() as opened:
        yield opened


@pytest.mark.parametrize("path", BODIES)
def test_an_id_is_in_the_answer_and_in_the_servers_log(
    http: httpx.Client, server: RunningServer, model: str, path: str
) -> None:
    own = f"mine/{secrets.token_hex(8)}"
    answer = http.post(f"/v1/{path}", json=BODIES[path] | {"model": model}, headers={"X-Request-Id": own})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-request-id"] == own
    assert len(lines(server, 1, id=own)) == 1


def test_who_sends_none_is_told_one(
    client: openai.OpenAI, http: httpx.Client, server: RunningServer, model: str
) -> None:
    ids = [client.embeddings.create(model=model, input="Hi")._request_id for _ in range(2)]
    assert len(set(ids)) == 2
    for one in ids:
        assert one is not None
        assert len(lines(server, 1, id=one)) == 1
    refusals = [http.get("/v1/nothing"), httpx.get(http.base_url.join("/v1/models")), http.post("/v1/embeddings")]
    assert all(answer.status_code >= 400 and answer.headers["x-request-id"] for answer in refusals)


@pytest.mark.parametrize("wrong", ["", "two words", "x" * (LENGTH + 1), "caf\xe9", "a\tb"])
def test_what_cannot_be_an_id_is_refused_by_name(http: httpx.Client, wrong: str) -> None:
    answer = http.get("/v1/models", headers={"X-Request-Id": wrong.encode("latin-1")})
    assert error(answer, 400)["param"] == "X-Request-Id"


def test_an_id_in_use_is_not_shared_and_leaving_ends_ones_own_only(
    http: httpx.Client, server: RunningServer, model: str
) -> None:
    own = secrets.token_hex(8)

    def streaming(max_tokens: int) -> Any:
        body = LONG | {"model": model, "max_tokens": max_tokens}
        return http.stream("POST", "/v1/completions", json=body, headers={"X-Request-Id": own})

    with streaming(40) as stays:
        rest = stays.iter_lines()
        assert next(rest).startswith("data: ")
        with streaming(900) as leaves:
            next(leaves.iter_lines())
            other = leaves.headers["x-request-id"]
        (left,) = lines(server, 1, id=other)
        assert left["outcome"] == "cancelled"
        assert '"finish_reason":"length"' in "".join(rest)
    assert (stays.headers["x-request-id"], other.startswith(f"{own}-")) == (own, True)
    with streaming(1) as again:
        assert again.headers["x-request-id"] == own


@pytest.mark.parametrize(("path", "span"), [("chat/completions", "chat "), ("embeddings", "embeddings ")])
def test_the_servers_spans_and_log_are_in_the_callers_trace(
    http: httpx.Client, server: RunningServer, collector: Collector, model: str, path: str, span: str
) -> None:
    trace, parent = context()
    headers = {"traceparent": parent, "tracestate": "vendor=1"}
    answer = http.post(f"/v1/{path}", json=BODIES[path] | {"model": model}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert named(collector.spans(trace, 7), span).attributes["gen_ai.response.id"] == answer.headers["x-request-id"]
    assert [line["id"] for line in lines(server, 1, trace_id=trace)] == [answer.headers["x-request-id"]]


@pytest.mark.parametrize("wrong", ["", "00-1-2-01", "caf\xe9", "x" * 5000])
def test_what_is_no_trace_context_is_left_out(http: httpx.Client, model: str, wrong: str) -> None:
    headers = {"traceparent": wrong.encode("latin-1"), "tracestate": wrong.encode("latin-1")}
    body = BODIES["embeddings"] | {"model": model}
    assert http.post("/v1/embeddings", json=body, headers=headers).status_code == 200
