"""`generate` through the real server: streaming or not, over gRPC, `/generate` and `/generate_stream`."""

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client

from tests.reference import Reference
from tests.serving import RunningServer

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 12}


def grpc_stream(server: RunningServer, model: str = "generate", **inputs: Any) -> Iterator[dict[str, Any]]:
    """All responses to one request, up to and with the final one; of each output the first value."""
    for response in grpc_arrays(server, model, **inputs):
        yield {name: value if name == "final" else value.reshape(-1)[0] for name, value in response.items()}


def grpc_arrays(
    server: RunningServer, model: str = "generate", request_id: str = "", **inputs: Any
) -> Iterator[dict[str, Any]]:
    """All responses to one request, up to and with the final one, as arrays."""
    responses: queue.Queue[Any] = queue.Queue()
    tensors = []
    for name, value in inputs.items():
        array = np.array([value.encode() if isinstance(value, str) else value])
        kind = {"S": "BYTES", "b": "BOOL", "i": "INT32"}[array.dtype.kind]
        array = array.astype({"BYTES": np.object_, "BOOL": bool, "INT32": np.int32}[kind])
        tensors.append(grpc_client.InferInput(name, [1], kind))
        tensors[-1].set_data_from_numpy(array)
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer(model, tensors, request_id=request_id, enable_empty_final_response=True)
        try:
            while True:
                result, error = responses.get(timeout=60)
                if error is not None:
                    raise error
                message = result.get_response()
                values = {output.name: result.as_numpy(output.name) for output in message.outputs}
                final = message.parameters["triton_final_response"].bool_param
                yield {**values, "final": final}
                if final:
                    return
        finally:
            client.stop_stream(cancel_requests=True)  # also where the caller leaves before the end


def post(server: RunningServer, body: dict[str, Any], path: str = "generate") -> requests.Response:
    return requests.post(f"http://{server.http}/v2/models/generate/{path}", json=body, timeout=60, stream=True)


def events(response: requests.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


@pytest.fixture(scope="module")
def expected(reference: Reference) -> str:
    return reference.greedy_text(PROMPT, 12)


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_grpc_answers_once_and_finally(server: RunningServer, expected: str, model: str) -> None:
    responses = list(
        grpc_stream(server, model, text_input=PROMPT, sampling_parameters=json.dumps(GREEDY), return_finish_reason=True)
    )
    assert len(responses) == 1
    assert responses[0]["text_output"].decode() == PROMPT + expected
    assert responses[0]["finish_reason"] == b"length"


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_grpc_streams_pieces_that_join_to_the_text(server: RunningServer, expected: str, model: str) -> None:
    responses = list(
        grpc_stream(
            server,
            model,
            text_input=PROMPT,
            stream=True,
            sampling_parameters=json.dumps(GREEDY),
            return_finish_reason=True,
            return_num_output_tokens=True,
        )
    )
    assert len(responses) > 3
    assert b"".join(r["text_output"] for r in responses).decode() == expected
    assert sum(int(r["num_output_tokens"]) for r in responses) == 12
    assert [r["finish_reason"] for r in responses] == [b""] * (len(responses) - 1) + [b"length"]
    assert [r["final"] for r in responses] == [False] * (len(responses) - 1) + [True]


def test_http_generate_takes_sampling_keys_beside_the_prompt(server: RunningServer, expected: str) -> None:
    answer = post(server, {"text_input": PROMPT, "exclude_input_in_output": True, **GREEDY})
    assert answer.status_code == 200, answer.text
    assert answer.json()["text_output"] == expected


def test_http_generate_takes_sampling_parameters_with_numbers_as_text(server: RunningServer, expected: str) -> None:
    keys = json.dumps({"temperature": "0", "max_tokens": "12"})
    answer = post(server, {"text_input": PROMPT, "sampling_parameters": keys})
    assert answer.json()["text_output"] == PROMPT + expected


def test_http_generate_stream_sends_events_that_join_to_the_text(server: RunningServer, expected: str) -> None:
    answer = post(server, {"text_input": PROMPT, "stream": True, **GREEDY}, path="generate_stream")
    assert answer.status_code == 200, answer.text
    pieces = events(answer)
    assert len(pieces) > 3
    assert "".join(piece["text_output"] for piece in pieces) == expected


def test_the_chosen_token_comes_first_in_its_logprobs(server: RunningServer) -> None:
    body = {"text_input": PROMPT, "temperature": 1.5, "seed": 3, "max_tokens": 8, "logprobs": 3}
    extras = {"exclude_input_in_output": True, "return_logprobs": True, "return_cumulative_logprob": True}
    answer = post(server, body | extras).json()
    chosen = [next(iter(token.values())) for token in json.loads(answer["logprobs"])]
    assert "".join(token["decoded_token"] for token in chosen) == answer["text_output"]
    assert sum(token["logprob"] for token in chosen) == pytest.approx(answer["cumulative_logprob"], abs=1e-3)
    assert any(token["rank"] != 1 for token in chosen)  # else this shows nothing


def test_the_readmes_first_request_is_answered_with_text(server: RunningServer) -> None:
    answer = post(server, {"text_input": PROMPT, "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    assert answer.json()["text_output"].startswith(PROMPT)
    assert len(answer.json()["text_output"]) > len(PROMPT)


def test_all_extras_come_when_asked_for(server: RunningServer, reference: Reference) -> None:
    names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    body = {"text_input": PROMPT, "temperature": 0, "max_tokens": 3, "logprobs": 2}
    answer = post(server, body | {f"return_{name}": True for name in names}).json()
    assert answer["num_input_tokens"] == len(reference.tokenizer(PROMPT)["input_ids"])
    assert answer["num_output_tokens"] == 3
    assert answer["finish_reason"] == "length"
    tokens = json.loads(answer["logprobs"])
    assert len(tokens) == 3
    best = [max(entry.values(), key=lambda value: value["logprob"])["logprob"] for entry in tokens]
    assert answer["cumulative_logprob"] == pytest.approx(sum(best), abs=1e-4)
    assert set(names) & set(post(server, {"text_input": PROMPT, **GREEDY}).json()) == set()


def test_messages_are_answered_with_the_models_template(server: RunningServer, reference: Reference) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    prompt = reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    ids = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
    text = reference.tokenizer.decode(reference.greedy(ids, 12), skip_special_tokens=True)
    answer = post(server, {"messages": json.dumps(messages), **GREEDY})
    assert answer.status_code == 200, answer.text
    assert answer.json()["text_output"] == text


def test_a_stop_string_ends_the_text_before_it(server: RunningServer, expected: str) -> None:
    stop = expected[5:9]
    body = {"text_input": PROMPT, "exclude_input_in_output": True, "return_finish_reason": True, **GREEDY}
    answer = post(server, body | {"sampling_parameters": json.dumps({"stop": [stop]})}).json()
    assert answer["text_output"] == expected[: expected.index(stop)]
    assert answer["finish_reason"] == "stop"


def test_a_seed_gives_the_same_text_again(server: RunningServer) -> None:
    body = {"text_input": PROMPT, "temperature": 0.9, "top_p": 0.9, "max_tokens": 12}
    answers = [post(server, body | {"seed": seed}).json()["text_output"] for seed in (42, 42, 43)]
    assert answers[0] == answers[1] != answers[2]
