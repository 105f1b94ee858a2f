"""What a server tells of its calls: the ledger in its metrics, a line for each in its log, and spans where one asks."""

import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from orthrus_backend.accounting import End
from tests.collector import Collector, ReceivedSpan
from tests.server.test_continuations import balanced
from tests.server.test_generate import grpc_stream, post
from tests.server.test_mixed import metric, wait_for
from tests.serving import RunningServer

PROMPT = "A secret that no log may tell"
CLIENT_SPAN = "b7ad6b7169203331"


def lines(server: RunningServer, count: int, within: float = 10.0, **known: str) -> list[dict[str, Any]]:
    """Lines of the log with these fields when there are `count`, or those there are after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        texts = [text for text in server.log.read_text().splitlines() if text.startswith("{")]
        found = [fields for fields in map(json.loads, texts) if known.items() <= fields.items()]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def embed(server: RunningServer, texts: list[str], request_id: str = "", **more: Any) -> None:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        tensor = grpc_client.InferInput("text_input", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=np.object_))
        client.infer("embed", [tensor], request_id=request_id, **more)


def stop(server: RunningServer, request_id: str) -> None:
    body = {"id": request_id, "stop": True}
    requests.post(f"http://{server.http}/v2/models/orthrus/generate", json=body, timeout=60)


def ended(server: RunningServer, kind: str, outcome: End) -> float:
    return metric(server, "orthrus_requests_total", kind=kind, outcome=outcome)


def test_the_ledger_counts_every_request_by_how_it_ended(server: RunningServer) -> None:
    balanced(server)
    kinds, outcomes = ("embed", "generate"), ("finished", "cancelled", "refused", "failed", "timeout")
    before = {(kind, outcome): ended(server, kind, outcome) for kind in kinds for outcome in outcomes}
    stopped = [f"stop-{secrets.token_hex(4)}" for _ in range(4)]
    endless = {"text_input": PROMPT, "max_tokens": 900, "ignore_eos": True}

    def refused_embedding() -> None:
        with pytest.raises(InferenceServerException):
            embed(server, ["fine", ""])

    with ThreadPoolExecutor(24) as threads:
        calls = [threads.submit(post, server, endless | {"id": name}) for name in stopped]
        calls += [threads.submit(post, server, {"text_input": PROMPT, "max_tokens": 3}) for _ in range(6)]
        calls += [threads.submit(post, server, {"text_input": PROMPT, "max_tokens": 3, "n": 2}) for _ in range(2)]
        calls += [threads.submit(post, server, {"text_input": PROMPT, "temperature": -1}) for _ in range(5)]
        calls += [threads.submit(embed, server, [PROMPT, "another"]) for _ in range(6)]
        calls += [threads.submit(refused_embedding) for _ in range(3)]
        for name in stopped:
            while not lines(server, 1, within=0.2, id=name):  # it may not have come in yet
                stop(server, name)
        for call in calls:
            call.result(120)
    balanced(server)
    difference = {key: ended(server, *key) - number for key, number in before.items()}
    assert {key: number for key, number in difference.items() if number} == {
        ("generate", "cancelled"): 4,
        ("generate", "finished"): 6 + 2 * 2,
        ("generate", "refused"): 5,
        ("embed", "finished"): 6 * 2,
        ("embed", "refused"): 3,
    }
    for kind in kinds:
        assert metric(server, "orthrus_requests_received_total", kind=kind) == metric(
            server, "orthrus_requests_total", kind=kind
        )
        assert metric(server, "orthrus_queue_tokens", kind=kind) == 0
    wait_for(server, "orthrus_batch_fill", 0)


def test_a_finished_generation_is_one_line(server: RunningServer) -> None:
    name = secrets.token_hex(8)
    post(server, {"text_input": PROMPT, "max_tokens": 4, "ignore_eos": True, "n": 2, "id": name})
    (fields,) = lines(server, 1, id=name)
    assert (fields["kind"], fields["outcome"], fields["error"]) == ("generate", "finished", None)
    assert (fields["requests"], fields["output_tokens"]) == (2, 8)
    assert fields["input_tokens"] > 4
    assert fields["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert 0 <= fields["queue_seconds"] < fields["first_token_seconds"] < fields["total_seconds"]
    assert PROMPT not in server.log.read_text()


def test_an_embedding_is_one_line_too(server: RunningServer) -> None:
    name = secrets.token_hex(8)
    embed(server, [PROMPT, PROMPT], name)
    (fields,) = lines(server, 1, id=name)
    assert (fields["kind"], fields["outcome"], fields["requests"]) == ("embed", "finished", 2)
    assert (fields["output_tokens"], fields["first_token_seconds"]) == (0, None)
    assert 0 <= fields["queue_seconds"] < fields["total_seconds"]


def test_a_refused_call_is_a_line_without_its_words(server: RunningServer) -> None:
    name = secrets.token_hex(8)
    messages = json.dumps([PROMPT])
    answer = requests.post(
        f"http://{server.http}/v2/models/generate/generate", json={"messages": messages, "id": name}, timeout=60
    )
    assert PROMPT in answer.text  # the caller is told what was wrong
    (fields,) = lines(server, 1, id=name)
    assert (fields["outcome"], fields["error"], fields["requests"]) == ("refused", "INVALID_ARG", 0)
    assert PROMPT not in server.log.read_text()


@pytest.mark.parametrize("name", ['"}\n{"id": "forged"}', "failed to load ", "Signal (15) received.", "x" * 5000])
def test_no_id_hides_or_forges_a_line(server: RunningServer, name: str) -> None:
    own = name + secrets.token_hex(4)
    post(server, {"text_input": PROMPT, "max_tokens": 1, "id": own})
    assert len(lines(server, 1, id=own[:128])) == 1
    assert not [text for text in server.log.read_text().splitlines() if text.startswith('{"id": "forged"}')]


def context() -> tuple[str, str]:
    """A trace id of a caller, and the traceparent that it sends."""
    trace = secrets.token_hex(16)
    return trace, f"00-{trace}-{CLIENT_SPAN}-01"


def named(spans: list[ReceivedSpan], start: str) -> ReceivedSpan:
    (span,) = [span for span in spans if span.name.startswith(start)]
    return span


def test_a_traceparent_header_leads_from_the_client_through_triton_to_the_engine(
    server: RunningServer, collector: Collector
) -> None:
    trace, parent = context()
    messages = json.dumps([{"role": "user", "content": PROMPT}])
    url = f"http://{server.http}/v2/models/generate/generate"
    name = secrets.token_hex(8)
    body = {"messages": messages, "max_tokens": 4, "ignore_eos": True, "temperature": 0, "id": name}
    requests.post(url, json=body, headers={"traceparent": parent}, timeout=60)
    spans = collector.spans(trace, 8)
    ours = named(spans, "chat ")
    assert ours.name == "chat HuggingFaceTB/SmolLM2-135M-Instruct"
    above = {span.id: span for span in spans}
    path = [ours]
    while path[-1].parent in above:
        path.append(above[path[-1].parent])
    assert [span.name for span in path[1:]] == ["orthrus", "generate", "InferRequest"]  # Triton's own
    assert path[-1].parent == CLIENT_SPAN
    stages = [span for span in spans if span.parent == ours.id]
    assert [stage.name for stage in sorted(stages, key=lambda stage: stage.start)] == ["queue", "prefill", "decode"]
    assert all(ours.start <= stage.start <= stage.end <= ours.end for stage in stages)
    assert ours.attributes["gen_ai.operation.name"] == "chat"
    assert ours.attributes["gen_ai.usage.output_tokens"] == 4
    assert ours.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert ours.attributes["gen_ai.response.id"] == name
    assert not [value for span in spans for value in span.attributes.values() if PROMPT in str(value)]
    assert [fields["id"] for fields in lines(server, 1, trace_id=trace)] == [name]


def test_a_traced_embedding_passes_its_face(server: RunningServer, collector: Collector) -> None:
    for _ in range(3):  # Triton's own way through a model that calls another one works now and then
        trace, parent = context()
        embed(server, [PROMPT], headers={"traceparent": parent})
        spans = collector.spans(trace, 7)
        ours = named(spans, "embeddings ")
        assert {span.name for span in spans if span.parent == ours.id} == {"queue", "embed"}
        assert named(spans, "orthrus_embed").id == ours.parent


def test_a_stream_takes_its_trace_from_a_parameter(server: RunningServer, collector: Collector) -> None:
    trace, parent = context()
    sampling = json.dumps({"max_tokens": 4, "traceparent": parent})
    with pytest.raises(InferenceServerException, match="traceparent"):  # it is Triton's parameter, not one of sampling
        list(grpc_stream(server, text_input=PROMPT, sampling_parameters=sampling))
    ended = threading.Event()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        prompt = grpc_client.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
        client.start_stream(lambda result, error: ended.set())
        client.async_stream_infer("generate", [prompt], parameters={"traceparent": parent, "max_tokens": 4})
        assert ended.wait(60)
        client.stop_stream()
    spans = collector.spans(trace, 4)
    assert named(spans, "text_completion ").parent == CLIENT_SPAN
    assert len(spans) == 4  # Triton itself traces by headers only


def test_an_error_ends_its_span_as_one(server: RunningServer, collector: Collector) -> None:
    trace, parent = context()
    with suppress(InferenceServerException):
        embed(server, [""], headers={"traceparent": parent})
    assert named(collector.spans(trace, 5), "embeddings ").attributes["error.type"] == "INVALID_ARG"


def test_without_a_trace_context_there_are_no_spans(server: RunningServer, collector: Collector) -> None:
    name = secrets.token_hex(8)
    post(server, {"text_input": PROMPT, "max_tokens": 1, "id": name})
    lines(server, 1, id=name)
    time.sleep(0.5)  # more than it takes for spans to be sent
    assert not [span for span in collector.all() if span.attributes.get("gen_ai.response.id") == name]
