"""What the client sends and how it reads answers, without a server."""

import json
from typing import Any

import numpy as np
import pytest
from orthrus_client import contract
from orthrus_client.results import Chunk, Generation
from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor


def test_a_single_text_is_a_list_of_one() -> None:
    assert contract.embed_tensors("é", {})["text_input"].tolist() == ["é"]


@pytest.mark.parametrize(
    ("texts", "fault"), [([], "empty"), (["fine", 3], r"texts\[1\].*3"), ([b"bytes"], "bytes"), (["\ud800"], "Unicode")]
)
def test_what_is_no_text_is_refused_by_name(texts: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        contract.embed_tensors(texts, {})


def test_options_are_left_out_when_there_are_none() -> None:
    assert set(contract.embed_tensors(["a"], {})) == {"text_input"}
    with_options = contract.embed_tensors(["a"], {"dimensions": 8})
    assert json.loads(with_options["embedding_parameters"].item()) == {"dimensions": 8}


def test_a_chat_is_sent_as_messages_and_a_prompt_as_text() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    chat = contract.chat_tensors(messages, {}, stream=True)
    assert json.loads(chat["messages"].item()) == messages
    assert "text_input" not in chat
    assert chat["stream"].item() is True
    assert contract.prompt_tensors("Hi", {}, stream=False)["text_input"].item() == "Hi"


@pytest.mark.parametrize("messages", ["Hi", {"role": "user", "content": "Hi"}, ["Hi"], [{"content": "Hi"}]])
def test_what_is_no_list_of_messages_is_refused_by_value(messages: Any) -> None:
    with pytest.raises(ValueError, match=r"list of \{'role'.*Hi"):
        contract.chat_tensors(messages, {}, stream=False)


def test_messages_are_no_prompt() -> None:
    with pytest.raises(ValueError, match=r"one str or .*\[\{.*'role'.*chat"):
        contract.prompt_tensors([{"role": "user", "content": "Hi"}], {}, stream=False)  # type: ignore[arg-type]


def test_log_probabilities_are_asked_for_only_when_wanted() -> None:
    assert "return_cumulative_logprob" not in contract.prompt_tensors("Hi", {}, stream=False)
    assert contract.prompt_tensors("Hi", {"logprobs": 2}, stream=False)["return_cumulative_logprob"].item() is True


def test_a_grpc_request_carries_every_tensor() -> None:
    request = contract.grpc_request("generate", "id-1", contract.prompt_tensors("Hé", {"top_k": 3}, stream=True))
    assert (request.model_name, request.id) == ("generate", "id-1")
    content = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
    assert deserialize_bytes_tensor(content["text_input"]).tolist() == ["Hé".encode()]
    assert content["stream"] == b"\x01"
    assert {tensor.datatype for tensor in request.inputs} == {"BYTES", "BOOL"}
    assert all(list(tensor.shape) == [1] for tensor in request.inputs)


def test_a_json_request_holds_scalars() -> None:
    body = contract.generate_json("id-1", contract.prompt_tensors("Hi", {"seed": 1}, stream=False))
    assert body["id"] == "id-1"
    assert body["stream"] is False
    assert json.loads(body["sampling_parameters"]) == {"seed": 1}
    json.dumps(body)


def test_request_ids_differ() -> None:
    assert contract.new_request_id() != contract.new_request_id()


def response(**outputs: np.ndarray) -> service_pb2.ModelInferResponse:
    message = service_pb2.ModelInferResponse()
    for name, array in outputs.items():
        is_text = array.dtype == np.object_
        message.outputs.add(name=name, shape=array.shape, datatype="BYTES" if is_text else contract_dtype(array))
        message.raw_output_contents.append(serialize_byte_tensor(array).item() if is_text else array.tobytes())
    return message


def contract_dtype(array: np.ndarray) -> str:
    return {"float32": "FP32", "uint32": "UINT32"}[array.dtype.name]


def test_a_grpc_response_is_read() -> None:
    fields = contract.grpc_fields(
        response(
            text_output=np.array(["é"], dtype=object),
            finish_reason=np.array(["stop"], dtype=object),
            cumulative_logprob=np.array([-1.5], dtype=np.float32),
            logprobs=np.array(['[{"a": 1}]'], dtype=object),
            num_input_tokens=np.array([3], dtype=np.uint32),
            num_output_tokens=np.array([1], dtype=np.uint32),
        )
    )
    assert contract.ChunkReader().read(fields) == [Chunk("é", "stop", 3, 1, -1.5, [{"a": 1}])]


def test_an_empty_finish_reason_is_none_and_missing_outputs_are_fine() -> None:
    assert contract.ChunkReader().read({"text_output": "a", "finish_reason": ""}) == [Chunk("a", None, 0, 0)]


def test_embeddings_keep_their_shape() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer = response(embedding=vectors, num_input_tokens=np.array([4, 5], dtype=np.uint32))
    read = contract.read_embeddings(InferResult(answer))
    np.testing.assert_array_equal(read.vectors, vectors)
    assert read.num_input_tokens.tolist() == [4, 5]


def test_chunks_join_to_the_whole_text() -> None:
    chunks = [
        Chunk("a", None, 3, 1, -0.5, ["x"]),
        Chunk("b", None, 3, 2, -1.0, ["y", "z"]),
        Chunk("", "length", 3, 0, -1.0),
    ]
    assert Generation.join(chunks) == Generation("ab", "length", 3, 3, -1.0, ["x", "y", "z"])
    assert Generation.join([]) == Generation("", None, 0, 0)
