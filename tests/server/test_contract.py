"""Every row of the contract that clients of NVIDIA's backends rely on, through the real server."""

import json
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client

from tests.reference import Reference, texts
from tests.server.test_embed import infer
from tests.server.test_generate import PROMPT, events, grpc_stream
from tests.serving import RunningServer

GREEDY = {"temperature": 0, "max_tokens": 8}


def post(server: RunningServer, path: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"http://{server.http}/v2/models/{path}", json=body, timeout=60)


def answered(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = post(server, path, body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


@pytest.fixture(scope="module")
def expected(reference: Reference) -> str:
    return reference.greedy_text(PROMPT, 8)


@pytest.mark.parametrize(
    "keys",
    [
        {"temperature": "0", "top_k": "-1", "max_tokens": 8},
        {"sampling_parameters": json.dumps({"temperature": "0.0", "max_tokens": "8", "top_k": "-1", "seed": "5"})},
        {"sampling_parameters": json.dumps({"temperature": 0, "top_p": None, "lora_name": None}), "max_tokens": 8},
        {"parameters": {"temperature": 0, "max_tokens": 8}},
    ],
    ids=["beside the prompt", "as JSON", "null is no value", "nested"],
)
@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_numbers_may_be_strings_and_keys_may_stand_anywhere(
    server: RunningServer, expected: str, model: str, keys: dict[str, Any]
) -> None:
    body = {"text_input": PROMPT, "exclude_input_in_output": True, **keys}
    assert answered(server, f"{model}/generate", body)["text_output"] == expected


def test_keys_may_be_request_parameters_of_a_grpc_stream(server: RunningServer, expected: str) -> None:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        answers: list[Any] = []
        prompt = grpc_client.InferInput("text_input", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
        client.start_stream(lambda result, error: answers.append(error or result.as_numpy("text_output")[0].decode()))
        client.async_stream_infer("generate", [prompt], parameters={"temperature": "0", "max_tokens": 8})
        client.stop_stream()
    assert answers == [PROMPT + expected]


def test_embedding_keys_may_be_request_parameters(server: RunningServer) -> None:
    text = texts(1)[0]
    wanted, _ = infer(server, "grpc", [text], pooling="last", dimensions=32)
    answer = answered(server, "embed/generate", {"text_input": text, "pooling": "last", "dimensions": "32"})
    np.testing.assert_allclose(answer["embedding"], wanted[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_words_may_be_inputs_and_empty_ones_do_not_count(server: RunningServer, expected: str, model: str) -> None:
    first, rest = expected[: len(expected) // 2], expected[len(expected) // 2 :]
    body = {"text_input": PROMPT, "exclude_input_in_output": True, "return_finish_reason": True, **GREEDY}
    free = answered(server, f"{model}/generate", body | {"stop_words": [""], "bad_words": [""]})
    assert free["text_output"] == expected
    stopped = answered(server, f"{model}/generate", body | {"stop_words": ["never said", rest]})
    assert (stopped["text_output"], stopped["finish_reason"]) == (first, "stop")
    word = expected.split()[0]
    without = answered(server, f"{model}/generate", body | {"bad_words": ["", word]})
    assert (
        without["text_output"]
        == answered(server, f"{model}/generate", body | {"sampling_parameters": json.dumps({"bad_words": [word]})})[
            "text_output"
        ]
    )
    assert word not in without["text_output"]


def test_token_ids_are_prompts(server: RunningServer, reference: Reference, expected: str) -> None:
    ids = reference.tokenizer(PROMPT)["input_ids"]
    for lengths in ({}, {"input_lengths": [len(ids)]}):
        answer = answered(server, "orthrus/generate", {"input_ids": ids, "task": "generate", **lengths, **GREEDY})
        assert answer["text_output"] == expected  # there is no text that could come first


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input_lengths": [1]}, "input_lengths without input_ids"),
        ({"input_ids": [5, 6], "input_lengths": [1]}, r"[1] do not add up to 2"),
        ({"input_ids": [5, 6], "input_lengths": [1, 1]}, "one prompt is expected, got 2"),
        ({"input_ids": [49152]}, "49152"),
        ({"input_ids": [5], "text_input": "Hi"}, "exactly one of text_input, messages and input_ids"),
        ({"text_input": "Hi", "task": "classify"}, "generate or embed, got 'classify'"),
        ({"task": "embed"}, "text_input"),
        ({"task": "embed", "messages": "[]"}, "messages does not go with task 'embed'"),
        ({"task": "embed", "text_input": "Hi", "max_tokens": 4}, "max_tokens does not go with task 'embed'"),
        ({"text_input": "Hi", "embedding_parameters": "{}"}, "embedding_parameters does not go with task 'generate'"),
        ({"embedding_request": '{"input": "Hi"}', "task": "generate"}, "does not go with task 'generate'"),
        ({"embedding_request": '{"input": "Hi"}', "text_input": "Hi"}, "text_input does not go with embedding_request"),
        ({"embedding_request": '{"input": 5}'}, "a text or a list of token ids, got 5"),
        ({"embedding_request": '{"input": "Hi", "pooling_params": {"dimensions": [0]}}'}, "dimensions"),
        ({"embedding_request": "{"}, "not valid JSON"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_call_that_says_no_one_thing_is_refused_by_name(
    server: RunningServer, body: dict[str, Any], named: str
) -> None:
    answer = post(server, "orthrus/generate", body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]


@pytest.mark.parametrize("model", ["embed", "orthrus_embed"])
@pytest.mark.parametrize("inputs", [[], ["embedding_parameters"]])
def test_an_embedding_of_nothing_is_refused_by_name(server: RunningServer, model: str, inputs: list[str]) -> None:
    tensors = [{"name": name, "shape": [1], "datatype": "BYTES", "data": ["{}"]} for name in inputs]
    answer = post(server, f"{model}/infer", {"inputs": tensors})
    assert answer.status_code == 400
    assert answer.json()["error"].endswith("text_input is needed: the texts to embed")


@pytest.mark.parametrize("ids", [False, True])
def test_what_tritons_openai_frontend_sends_to_embed(server: RunningServer, reference: Reference, ids: bool) -> None:
    """Its text_output, and both counts, of which it reads one value each."""
    text = texts(1)[0]
    prompt = "" if ids else reference.prompt
    tokens = reference.tokenizer(prompt + text)["input_ids"]
    document = {"input": tokens if ids else text, "pooling_params": {"dimensions": [64]}}
    (answer,) = grpc_stream(
        server,
        "orthrus",
        embedding_request=json.dumps(document),
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    )
    wanted = reference.embed(text, prompt=prompt)[:64]
    np.testing.assert_allclose(json.loads(answer["text_output"]), wanted / np.linalg.norm(wanted), rtol=0, atol=1e-5)
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (len(tokens), 0)
    (bare,) = grpc_stream(server, "orthrus", embedding_request=json.dumps(document))
    assert set(bare) == {"text_output", "final"}


@pytest.mark.parametrize("stream", [False, True])
def test_what_tritons_openai_frontend_sends_to_generate(server: RunningServer, expected: str, stream: bool) -> None:
    sampling = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "n": 1,
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": 8,
    }
    answers = list(
        grpc_stream(
            server,
            "orthrus",
            text_input=PROMPT,
            stream=stream,
            exclude_input_in_output=True,
            sampling_parameters=json.dumps(sampling),
            return_logprobs=False,
            return_num_input_tokens=True,
            return_num_output_tokens=True,
        )
    )
    assert b"".join(answer["text_output"] for answer in answers).decode() == expected
    assert sum(int(answer["num_output_tokens"]) for answer in answers) == 8


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_what_genai_perf_sends(server: RunningServer, reference: Reference, model: str) -> None:
    """Its input for the backend vllm: numbers as strings, and a text_output wanted in every response."""
    sampling = json.dumps({"max_tokens": "8", "min_tokens": "8"})
    answers = list(
        grpc_stream(
            server, model, text_input=PROMPT, stream=True, exclude_input_in_output=True, sampling_parameters=sampling
        )
    )
    assert all("text_output" in answer for answer in answers)
    text = b"".join(answer["text_output"] for answer in answers).decode()
    assert len(reference.tokenizer(text)["input_ids"]) >= 4  # drawn tokens do not always come back as they were


class TestLiteLLM:
    """The bodies of LiteLLM's provider `triton/`, of version 1.110.2, and of older ones where they differ."""

    def generate(self, stream: bool, **parameters: Any) -> dict[str, Any]:
        return {"text_input": PROMPT, "parameters": {"max_tokens": 8, **parameters}, "stream": stream}

    @pytest.mark.parametrize("older", [{}, {"bad_words": [""], "stop_words": [""]}])
    def test_completions(self, server: RunningServer, expected: str, older: dict[str, Any]) -> None:
        answer = answered(server, "generate/generate", self.generate(False, temperature=0, **older))
        assert answer["text_output"] == PROMPT + expected
        pieces = post(server, "generate/generate_stream", self.generate(True, temperature=0, **older))
        assert "".join(piece["text_output"] for piece in events(pieces)) == expected

    def test_embeddings(self, server: RunningServer, reference: Reference) -> None:
        """Every output of the answer is taken for vectors, so that there may be no other."""
        inputs = texts(3)
        tensor = {"name": "input_text", "shape": [3], "datatype": "BYTES", "data": inputs}
        (output,) = answered(server, "embed/infer", {"inputs": [tensor]})["outputs"]
        assert output["shape"] == [3, 576]
        vectors = np.array(output["data"]).reshape(3, -1)
        np.testing.assert_allclose(vectors, [reference.embed(text) for text in inputs], rtol=0, atol=1e-5)

    def test_its_name_for_the_texts_and_ours_do_not_mix(self, server: RunningServer) -> None:
        names = ("input_text", "text_input")
        tensors = [{"name": name, "shape": [1], "datatype": "BYTES", "data": ["Hi"]} for name in names]
        answer = post(server, "embed/infer", {"inputs": tensors})
        assert answer.status_code == 400
        assert "text_input and input_text" in answer.json()["error"]
