"""A caller's fault gives a client error that names it, and the next request works."""

import json
import re
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.server.test_embed import infer
from tests.server.test_generate import grpc_stream, post
from tests.serving import RunningServer

GENERATE_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"text_input": "Hi", "temprature": 0.5}, "temprature"),
    ({"text_input": "Hi", "sampling_parameters": '{"temprature": 1}'}, "temprature"),
    ({"text_input": "Hi", "sampling_parameters": '{"temperature": -1}'}, "temperature.*-1"),
    ({"text_input": "Hi", "sampling_parameters": "[1, 2]"}, "JSON object"),
    ({"text_input": "Hi", "sampling_parameters": "{"}, "not valid JSON"),
    ({"text_input": "Hi", "max_tokens": 0}, "max_tokens.*0"),
    ({"text_input": "Hi", "max_tokens": 1100}, "1100.*limit of 1024"),
    ({"text_input": ""}, "empty"),
    ({"text_input": "word " * 1100}, "11.*1024"),
    ({"text_input": "x" * 5_000_000}, "limit"),
    ({"text_input": ["a", "b"]}, "one prompt.*2|shape"),
    ({}, "text_input"),
    ({"text_input": "Hi", "adapter": "nobody"}, "nobody"),
    ({"text_input": "Hi", "sampling_parameters": '{"stop_token_ids": [99999999]}'}, "99999999"),
    ({"text_input": "Hi", "sampling_parameters": '{"logit_bias": {"99999999": 1}}'}, "99999999"),
    ({"text_input": "Hi", "sampling_parameters": '{"n": 17}'}, "n: .*16.*17|n: .*17.*16"),
    ({"text_input": "Hi", "n": 0}, "n: .*0"),
    ({"text_input": "Hi", "n": 3, "temperature": 0}, "n 3 with temperature 0"),
    ({"messages": '[{"role": "user"'}, "not valid JSON"),
    ({"messages": '["hello"]'}, "messages"),
    ({"text_input": "Hi", "messages": '[{"role": "user", "content": "Hi"}]'}, "exactly one"),
    ({"messages": '[{"role": "user", "content": "a \\ud800 b"}]'}, "not valid Unicode"),
]

EMBED_FAULTS: list[tuple[list[bytes], dict[str, Any] | str, str]] = [
    ([b""], {}, "empty"),
    ([], {}, "text|shape|element"),
    ([b"fine", b"", b"fine"], {}, "text 1.*empty"),
    ([b"\xff\xfe"], {}, "UTF-8"),
    ([b"word " * 1100], {}, "11.*1024.*truncate"),
    ([b"Hi"], {"poling": "mean"}, "poling"),
    ([b"Hi"], {"pooling": "median"}, "pooling.*median"),
    ([b"Hi"], {"dimensions": 0}, "dimensions.*0"),
    ([b"Hi"], {"dimensions": 577}, "577.*576"),
    ([b"Hi"], {"prompt_name": "query"}, "query"),
    ([b"Hi"], {"adapter": "nobody"}, "nobody"),
    ([b"Hi"], {"instruction": "a \ud800 b"}, "not valid Unicode"),
    ([b"Hi"], "nonsense", "not valid JSON"),
]


def still_serves(server: RunningServer) -> None:
    body = {"text_input": "Hello", "max_tokens": 2, "temperature": 0}
    answer = requests.post(f"http://{server.http}/v2/models/generate/generate", json=body, timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("body", "named"), GENERATE_FAULTS, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_bad_generation_is_refused_by_name(
    server: RunningServer, body: dict[str, Any], named: str, path: str
) -> None:
    answer = requests.post(f"http://{server.http}/v2/models/generate/{path}", json=body, timeout=60)
    assert answer.status_code == 400 or (path == "generate_stream" and "error" in answer.text), answer.text
    assert_names(answer.text, named)
    still_serves(server)


@pytest.mark.parametrize(("inputs", "parameters", "named"), EMBED_FAULTS, ids=lambda value: str(value)[:50])
def test_a_bad_embedding_is_refused_by_name(
    server: RunningServer, inputs: list[bytes], parameters: dict[str, Any] | str, named: str
) -> None:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        tensors = [grpc_client.InferInput("text_input", [len(inputs)], "BYTES")]
        tensors[0].set_data_from_numpy(np.array(inputs, dtype=np.object_))
        document = parameters if isinstance(parameters, str) else json.dumps(parameters)
        tensors.append(grpc_client.InferInput("embedding_parameters", [1], "BYTES"))
        tensors[1].set_data_from_numpy(np.array([document], dtype=np.object_))
        with pytest.raises(InferenceServerException) as caught:
            client.infer("embed", tensors)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert_names(caught.value.message(), named)
    still_serves(server)


@pytest.mark.parametrize(("shape", "kind"), [([1, 2], "BYTES"), ([2], "INT32")])
def test_a_wrong_shape_or_type_is_refused(server: RunningServer, shape: list[int], kind: str) -> None:
    array = np.full(shape, b"x", dtype=np.object_) if kind == "BYTES" else np.ones(shape, dtype=np.int32)
    with grpc_client.InferenceServerClient(server.grpc) as client:
        tensor = grpc_client.InferInput("text_input", shape, kind)
        tensor.set_data_from_numpy(array)
        with pytest.raises(InferenceServerException, match="text_input"):
            client.infer("embed", [tensor])
    still_serves(server)


def assert_names(message: str, pattern: str) -> None:

    assert re.search(pattern, message, re.DOTALL), f"{message!r} does not name {pattern!r}"


def test_a_flood_in_one_request_is_refused_before_it_costs_anybody_time(server: RunningServer) -> None:
    body = {"messages": json.dumps([{"role": "user", "content": "word " * 2_000_000}])}
    many = {"messages": json.dumps([{"role": "user", "content": "x"}] * 100_000)}
    role = {"messages": json.dumps([{"role": "word " * 2_000_000, "content": "x"}])}
    for flood in (body, many, role):
        answer = requests.post(f"http://{server.http}/v2/models/generate/generate", json=flood, timeout=60)
        assert answer.status_code == 400, answer.text
        assert_names(answer.text, "limit")
    still_serves(server)


def test_a_prompt_of_64_mb_is_refused_by_its_size(server: RunningServer) -> None:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        tensor = grpc_client.InferInput("text_input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"x" * (64 << 20)], dtype=np.object_))
        with pytest.raises(
            InferenceServerException, match=r"bytes; the limit is 16777216 \(max_request_bytes\)"
        ) as caught:
            client.infer("embed", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    still_serves(server)


def test_a_nul_is_a_character_and_other_bytes_are_refused(server: RunningServer) -> None:
    assert post(server, {"text_input": "a\0b", "max_tokens": 2}).status_code == 200
    assert np.isfinite(infer(server, "grpc", ["a\0b"])[0]).all()
    with pytest.raises(InferenceServerException, match="text_input: not valid UTF-8 at byte 2"):
        list(grpc_stream(server, text_input=b"ok\xff"))
    still_serves(server)


@pytest.mark.parametrize("inputs", [[], [{"name": "text_input", "shape": [-1], "datatype": "BYTES", "data": ["a"]}]])
def test_a_missing_input_and_a_negative_shape_are_refused(server: RunningServer, inputs: list[Any]) -> None:
    answer = requests.post(f"http://{server.http}/v2/models/embed/infer", json={"inputs": inputs}, timeout=60)
    assert answer.status_code == (500 if inputs else 400), answer.text  # 500: Triton's word for what it cannot parse
    assert_names(answer.text, "shape" if inputs else "input")
    still_serves(server)
