"""`embed` through the real server: one request, one response, over both protocols."""

import json

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from tests.reference import Reference, texts
from tests.serving import RunningServer


def infer(
    server: RunningServer, protocol: str, inputs: list[str], **parameters: object
) -> tuple[np.ndarray, np.ndarray]:
    module = grpc_client if protocol == "grpc" else http_client
    with module.InferenceServerClient(getattr(server, protocol)) as client:
        tensors = [module.InferInput("text_input", [len(inputs)], "BYTES")]
        tensors[0].set_data_from_numpy(np.array([text.encode() for text in inputs], dtype=np.object_))
        if parameters:
            tensors.append(module.InferInput("embedding_parameters", [1], "BYTES"))
            tensors[1].set_data_from_numpy(np.array([json.dumps(parameters)], dtype=np.object_))
        result = client.infer("embed", tensors)
        return result.as_numpy("embedding"), result.as_numpy("num_input_tokens")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("count", [1, 32])
def test_vectors_equal_the_reference_in_order(
    server: RunningServer, reference: Reference, protocol: str, count: int
) -> None:
    inputs = texts(count)
    vectors, tokens = infer(server, protocol, inputs)
    assert vectors.shape == (count, 576)
    assert vectors.dtype == np.float32
    assert tokens.tolist() == [len(reference.tokenizer(reference.prompt + text)["input_ids"]) for text in inputs]
    np.testing.assert_allclose(vectors, np.stack([reference.embed(text) for text in inputs]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "weighted_mean", "cls", "last"])
def test_every_pooling_equals_the_reference(server: RunningServer, reference: Reference, pooling: str) -> None:
    text = texts(12)[-1]
    vectors, _ = infer(server, "grpc", [text], pooling=pooling)
    np.testing.assert_allclose(vectors[0], reference.embed(text, pooling), rtol=0, atol=1e-5)


def test_dimensions_cut_and_then_normalise(server: RunningServer, reference: Reference) -> None:
    text = texts(1)[0]
    vectors, _ = infer(server, "grpc", [text], dimensions=64)
    expected = reference.embed(text)[:64]
    np.testing.assert_allclose(vectors[0], expected / np.linalg.norm(expected), rtol=0, atol=1e-5)


def test_an_instruction_stands_before_every_text(server: RunningServer, reference: Reference) -> None:
    vectors, _ = infer(server, "http", ["What is covered?"], instruction="Instruct: find plans. Query: ")
    expected = reference.embed("What is covered?", prompt="Instruct: find plans. Query: ")
    np.testing.assert_allclose(vectors[0], expected, rtol=0, atol=1e-5)


def test_a_long_text_is_cut_where_asked_for(server: RunningServer) -> None:
    text = "word " * 1100
    for truncate in ("end", "start"):
        vectors, tokens = infer(server, "grpc", [text], truncate=truncate)
        assert tokens.tolist() == [1024]
        assert np.isfinite(vectors).all()


def test_token_ids_go_to_the_backend_directly(server: RunningServer, reference: Reference) -> None:
    inputs = texts(3)
    ids = [reference.tokenizer(text)["input_ids"] for text in inputs]
    flat = [token for part in ids for token in part]
    body = {"task": "embed", "input_ids": flat, "input_lengths": [len(part) for part in ids]}
    answer = requests.post(f"http://{server.http}/v2/models/orthrus/generate", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    vectors = np.array(answer.json()["embedding"], dtype=np.float32).reshape(3, -1)
    expected = np.stack([reference.embed(text, prompt="") for text in inputs])
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_nvidias_embedding_request_answers_json_in_text_output(server: RunningServer, reference: Reference) -> None:
    text = texts(1)[0]
    body = {"embedding_request": json.dumps({"input": text, "pooling_params": {"dimensions": [64]}})}
    answer = requests.post(f"http://{server.http}/v2/models/orthrus/generate", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    expected = reference.embed(text)[:64]
    vector = np.array(json.loads(answer.json()["text_output"]))
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=0, atol=1e-5)
