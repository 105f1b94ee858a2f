"""However a request ends (done, refused, stopped, out of time, left alone): one FINAL, and the engine is free again."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client
from orthrus_client.contract import grpc_request
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.reference import Reference
from tests.server.test_continuations import balanced
from tests.server.test_mixed import metric, wait_for
from tests.serving import RunningServer

PROMPT = "The capital of France is"
QUIET_SECONDS = 0.3  # that a stream is listened to after FINAL
ENDLESS = {"sampling_parameters": json.dumps({"max_tokens": 900, "ignore_eos": True, "temperature": 0})}
LONG_TEXTS = ["word " * 1000] * 2  # some seconds of work
OTHER_TIME = f"timeout: microseconds are expected, from 0 to {10**15}"
OUT_OF_TIME = "deadline exceeded: the request's time is over"


def tensors(**inputs: Any) -> dict[str, np.ndarray]:
    arrays = {name: np.array(value if isinstance(value, list) else [value]) for name, value in inputs.items()}
    kinds = {"U": np.object_, "b": np.bool_, "i": np.int32}
    return {name: array.astype(kinds[array.dtype.kind]) for name, array in arrays.items()}


def message(model: str, request_id: str = "", timeout: int = 0, **inputs: Any) -> service_pb2.ModelInferRequest:
    """A request over gRPC; `timeout` is Triton's, in microseconds."""
    request = grpc_request(model, request_id, tensors(**inputs))
    if timeout:
        request.parameters["timeout"].int64_param = timeout
    return request


@dataclass
class Answer:
    """All that came on a stream for one request, up to some time after its FINAL."""

    texts: list[str]
    reasons: list[str]
    errors: list[str]
    finals: list[bool]


@contextmanager
def stub(server: RunningServer) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def listen(server: RunningServer, request: service_pb2.ModelInferRequest, on_first: Any = None) -> Answer:
    """Send a request on a stream of its own, and hear everything that comes back."""
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    done = threading.Event()

    def requests_to_send() -> Iterator[service_pb2.ModelInferRequest]:
        yield request
        done.wait(60)

    answer = Answer([], [], [], [])
    with stub(server) as service:
        for response in service.ModelStreamInfer(requests_to_send(), timeout=90):
            result = grpc_client.InferResult(response.infer_response)
            text, reason = result.as_numpy("text_output"), result.as_numpy("finish_reason")
            answer.texts += [] if text is None else [text[0].decode()]
            answer.reasons += [] if reason is None else [reason[0].decode()]
            answer.errors += [response.error_message] if response.error_message else []
            final = response.infer_response.parameters["triton_final_response"].bool_param
            answer.finals.append(final or bool(response.error_message))
            if answer.finals[-1]:
                threading.Timer(QUIET_SECONDS, done.set).start()
            if on_first is not None:
                on_first()
                on_first = None
    return answer


def stop(server: RunningServer, request_id: str) -> requests.Response:
    body = {"id": request_id, "stop": True}
    return requests.post(f"http://{server.http}/v2/models/orthrus/generate", json=body, timeout=60)


def once_running(server: RunningServer, kind: str) -> None:
    deadline = time.monotonic() + 30
    while not metric(server, "orthrus_requests_running", kind=kind) and time.monotonic() < deadline:
        time.sleep(0.05)


def stop_once_running(server: RunningServer, request_id: str, kind: str) -> None:
    once_running(server, kind)
    assert stop(server, request_id).status_code == 200


@pytest.mark.parametrize("model", ["generate", "orthrus"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_generation_ends_once(server: RunningServer, model: str, stream: bool) -> None:
    request = message(model, text_input=PROMPT, stream=stream, max_tokens=4, return_finish_reason=True)
    answer = listen(server, request)
    assert answer.finals == [False] * (len(answer.texts) - 1) + [True]
    assert answer.reasons[-1] in ("length", "stop")
    assert answer.errors == []


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_a_refused_generation_ends_once(server: RunningServer, model: str) -> None:
    answer = listen(server, message(model, text_input=PROMPT, sampling_parameters='{"top_p": 7}'))
    assert answer.finals == [True]
    assert "top_p" in answer.errors[0]


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_a_stopped_stream_keeps_its_text_and_ends_once(server: RunningServer, reference: Reference, model: str) -> None:
    name = f"stream-on-{model}"
    request = message(model, name, text_input=PROMPT, stream=True, return_finish_reason=True, **ENDLESS)
    answer = listen(server, request, on_first=lambda: stop(server, name))
    assert answer.finals == [False] * (len(answer.finals) - 1) + [True]
    assert answer.reasons == [""] * (len(answer.reasons) - 1) + ["cancelled"]
    assert_begins("".join(answer.texts), reference)
    balanced(server)


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_a_stopped_generation_answers_what_it_has(server: RunningServer, reference: Reference, model: str) -> None:
    body = {"id": f"whole-on-{model}", "text_input": PROMPT, "exclude_input_in_output": True, **ENDLESS}
    with ThreadPoolExecutor() as threads:
        call = threads.submit(generate, server, model, body | {"return_finish_reason": True})
        stop_once_running(server, body["id"], "generate")
        answer = call.result(60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["finish_reason"] == "cancelled"
    assert_begins(answer.json()["text_output"], reference)
    balanced(server)


@pytest.mark.parametrize("model", ["generate", "orthrus"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_out_of_time_keeps_its_text_and_ends_once(
    server: RunningServer, reference: Reference, model: str, stream: bool
) -> None:
    inputs = {"text_input": PROMPT, "stream": stream, "return_finish_reason": True, **ENDLESS}
    if not stream:
        inputs["exclude_input_in_output"] = True
    began = time.monotonic()
    answer = listen(server, message(model, timeout=700_000, **inputs))
    assert time.monotonic() - began < 20
    assert answer.finals == [False] * (len(answer.finals) - 1) + [True]
    assert answer.reasons == [""] * (len(answer.reasons) - 1) + ["timeout"]
    assert_begins("".join(answer.texts), reference)
    balanced(server)


@pytest.mark.parametrize("timeout", [700_000, "700000"])
def test_the_time_may_stand_in_the_body_of_generate(server: RunningServer, timeout: int | str) -> None:
    body = {"text_input": PROMPT, "timeout": timeout, "return_finish_reason": True, **ENDLESS}
    answer = generate(server, "generate", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["finish_reason"] == "timeout"


@pytest.mark.parametrize("timeout", [-1, 0.5, "soon", True, 10**15 + 1, "9" * 400, "9" * 5000])
def test_a_time_that_is_none_is_refused(server: RunningServer, timeout: Any) -> None:
    for model, texts in (("generate", {"text_input": PROMPT}), ("embed", {"text_input": PROMPT})):
        answer = generate(server, model, texts | {"timeout": timeout})
        assert answer.status_code == 400
        assert f"{OTHER_TIME}, got {timeout!r}"[:100] in answer.json()["error"]


@pytest.mark.parametrize("model", ["embed", "orthrus_embed", "orthrus", "generate"])
def test_a_negative_time_is_refused_over_grpc(server: RunningServer, model: str) -> None:
    """There it comes as a very large one."""
    for timeout in (-1, -(2**63), 2**63 - 1):
        request = message(model, timeout=timeout, text_input=PROMPT)
        if model in ("generate", "orthrus"):
            (error,) = listen(server, request).errors
        else:
            with stub(server) as service, pytest.raises(grpc.RpcError) as caught:
                service.ModelInfer(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            error = caught.value.details()
        assert f"{OTHER_TIME}, got {timeout % 2**64}" in error


@pytest.mark.parametrize("model", ["embed", "orthrus_embed"])
def test_an_embedding_out_of_time_is_an_error(server: RunningServer, model: str) -> None:
    began = time.monotonic()
    with stub(server) as service, pytest.raises(grpc.RpcError) as caught:
        service.ModelInfer(message(model, timeout=300_000, text_input=LONG_TEXTS))
    assert time.monotonic() - began < 20
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert caught.value.details().endswith(OUT_OF_TIME)
    answer = infer(server, model, LONG_TEXTS, timeout=300_000)
    assert answer.status_code in (400, 499)
    assert answer.json()["error"].endswith(OUT_OF_TIME)
    balanced(server)


def test_an_embedding_on_a_stream_ends_once(server: RunningServer) -> None:
    done = listen(server, message("orthrus", task="embed", text_input=PROMPT))
    assert (done.finals, done.errors) == ([True], [])
    late = listen(server, message("orthrus", timeout=300_000, task="embed", text_input=LONG_TEXTS))
    assert (late.finals, late.errors) == ([True], [OUT_OF_TIME])
    balanced(server)


@pytest.mark.parametrize("model", ["embed", "orthrus_embed", "orthrus"])
def test_a_stopped_embedding_is_an_error(server: RunningServer, model: str) -> None:
    name = f"vectors-of-{model}"
    inputs = {"text_input": LONG_TEXTS} | ({"task": "embed"} if model == "orthrus" else {})
    with ThreadPoolExecutor() as threads:
        stopping = threads.submit(stop_once_running, server, name, "embed")
        if model == "orthrus":
            answer = listen(server, message(model, name, **inputs))
            assert answer.finals == [True]
            error = answer.errors[0]
        else:
            with stub(server) as service, pytest.raises(grpc.RpcError) as caught:
                service.ModelInfer(message(model, name, **inputs))
            assert caught.value.code() is grpc.StatusCode.CANCELLED
            error = caught.value.details()
        stopping.result(60)
    assert error.endswith("cancelled: the request was ended before its answer was complete")
    balanced(server)


def test_the_face_tells_the_engine_that_its_caller_has_gone(server: RunningServer) -> None:
    """Called directly: Triton tells no step of an ensemble. A neighbour with the same id is left alone."""
    ended = metric(server, "orthrus_requests_total", kind="embed", outcome="cancelled")
    with stub(server) as service:
        call = service.ModelInfer.future(message("orthrus_embed", "shared", text_input=LONG_TEXTS))
        neighbour = service.ModelInfer.future(message("orthrus_embed", "shared", text_input="short"))
        once_running(server, "embed")
        call.cancel()
        assert list(neighbour.result(60).outputs[0].shape) == [1, 576]
    balanced(server)
    assert metric(server, "orthrus_requests_total", kind="embed", outcome="cancelled") > ended


def test_stop_ends_all_that_carry_its_id_and_no_other(server: RunningServer) -> None:
    def call(name: str) -> dict[str, Any]:
        body = {"id": name, "text_input": PROMPT, "return_finish_reason": True, "max_tokens": 40, "ignore_eos": True}
        return generate(server, "generate", body).json()

    with ThreadPoolExecutor() as threads:
        same = [threads.submit(call, "same") for _ in range(2)]
        other = threads.submit(call, "other")
        wait_for(server, "orthrus_requests_running", 3, kind="generate")
        stop(server, "same")
        assert [each.result(60)["finish_reason"] for each in same] == ["cancelled"] * 2
        assert other.result(60)["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_stop_answers_over_http(server: RunningServer, path: str) -> None:
    body = {"id": "nobody", "stop": True}
    answer = requests.post(f"http://{server.http}/v2/models/orthrus/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert '"text_output":""' in answer.text


def test_stop_answers_on_a_stream_once(server: RunningServer) -> None:
    answer = listen(server, message("orthrus", "nobody", stop=True))
    assert (answer.texts, answer.finals, answer.errors) == ([""], [True], [])


def test_stop_needs_an_id(server: RunningServer) -> None:
    answer = listen(server, message("orthrus", stop=True))
    assert answer.finals == [True]
    assert "id" in answer.errors[0]


def test_an_id_of_any_length_is_not_passed_on_to_other_engines(server: RunningServer) -> None:
    answer = listen(server, message("orthrus", "x" * 65537, stop=True))
    assert (answer.finals, answer.errors) == ([True], ["stop: the id has 65537 bytes; the limit is 65536"])


def generate(server: RunningServer, model: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"http://{server.http}/v2/models/{model}/generate", json=body, timeout=60)


def infer(server: RunningServer, model: str, texts: list[str], **parameters: Any) -> requests.Response:
    inputs = [{"name": "text_input", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]
    body = {"inputs": inputs, "parameters": parameters}
    return requests.post(f"http://{server.http}/v2/models/{model}/infer", json=body, timeout=60)


def assert_begins(text: str, reference: Reference) -> None:
    """The text that there was time for is the beginning of the whole one."""
    expected = reference.greedy_text(PROMPT, 12)
    assert text.startswith(expected) or expected.startswith(text)
