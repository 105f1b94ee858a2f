"""`n` continuations of one prompt, through the real server: each is the one that its seed gives alone."""

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.server.test_generate import events, grpc_arrays, post
from tests.server.test_mixed import metric, wait_for
from tests.serving import RunningServer

PROMPT = "Once upon a time"
SAMPLING = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 16, "seed": 7}
EXTRAS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
ALL_EXTRAS = {f"return_{name}": True for name in EXTRAS}


def alone(server: RunningServer, seed: int, **sampling: Any) -> dict[str, Any]:
    body = {"text_input": PROMPT, "exclude_input_in_output": True, **ALL_EXTRAS, **SAMPLING, **sampling}
    return post(server, body | {"seed": seed}).json()


def balanced(server: RunningServer) -> None:
    """Nothing runs, nothing waits, and all that was received has ended."""
    wait_for(server, "orthrus_requests_running", 0)
    wait_for(server, "orthrus_requests_waiting", 0)
    received = metric(server, "orthrus_requests_received_total")
    wait_for(server, "orthrus_requests_total", received)
    assert metric(server, "orthrus_kv_blocks", state="used") == 0


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_one_response_holds_all_of_them(server: RunningServer, model: str) -> None:
    expected = [alone(server, 7 + i) for i in range(3)]
    assert len({answer["text_output"] for answer in expected}) == 3
    parameters = json.dumps(SAMPLING | {"n": 3})
    (answer,) = grpc_arrays(server, model, text_input=PROMPT, sampling_parameters=parameters, **ALL_EXTRAS)
    assert answer["final"] is True
    assert [text.decode() for text in answer["text_output"]] == [PROMPT + e["text_output"] for e in expected]
    assert [reason.decode() for reason in answer["finish_reason"]] == [e["finish_reason"] for e in expected]
    assert answer["num_output_tokens"].tolist() == [e["num_output_tokens"] for e in expected]
    assert answer["num_input_tokens"].tolist() == [expected[0]["num_input_tokens"]]
    np.testing.assert_allclose(
        answer["cumulative_logprob"], [e["cumulative_logprob"] for e in expected], rtol=0, atol=1e-3
    )
    for document, single in zip(answer["logprobs"], expected, strict=True):
        assert [list(token) for token in json.loads(document)] == [
            list(token) for token in json.loads(single["logprobs"])
        ]


@pytest.mark.parametrize("model", ["generate", "orthrus"])
def test_the_pieces_of_a_stream_join_to_each_of_them(server: RunningServer, model: str) -> None:
    expected = [alone(server, 7 + i) for i in range(3)]
    parameters = json.dumps(SAMPLING | {"n": 3})
    pieces = list(
        grpc_arrays(server, model, text_input=PROMPT, stream=True, sampling_parameters=parameters, **ALL_EXTRAS)
    )
    assert [piece["final"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(piece["text_output"].shape == (3,) for piece in pieces)
    for i, single in enumerate(expected):
        assert b"".join(piece["text_output"][i] for piece in pieces).decode() == single["text_output"]
        assert sum(int(piece["num_output_tokens"][i]) for piece in pieces) == single["num_output_tokens"]
        tokens = [token for piece in pieces for token in json.loads(piece["logprobs"][i])]
        assert [list(token) for token in tokens] == [list(token) for token in json.loads(single["logprobs"])]
        assert pieces[-1]["finish_reason"][i].decode() == single["finish_reason"]


def test_one_that_ends_early_leaves_the_others_going(server: RunningServer) -> None:
    text = alone(server, 8)["text_output"]
    stop = next(
        text[at : at + 4] for at in range(3, len(text)) if text[at : at + 4] not in alone(server, 7)["text_output"]
    )
    expected = [alone(server, 7 + i, sampling_parameters=json.dumps({"stop": [stop]})) for i in range(2)]
    assert [e["finish_reason"] for e in expected] == ["length", "stop"]
    parameters = json.dumps(SAMPLING | {"n": 2, "stop": [stop]})
    for stream in (False, True):
        pieces = list(
            grpc_arrays(
                server,
                text_input=PROMPT,
                stream=stream,
                sampling_parameters=parameters,
                **ALL_EXTRAS,
                **({} if stream else {"exclude_input_in_output": True}),
            )
        )
        for i, single in enumerate(expected):
            assert b"".join(piece["text_output"][i] for piece in pieces).decode() == single["text_output"]
        assert [reason.decode() for reason in pieces[-1]["finish_reason"]] == ["length", "stop"]


def test_over_http_the_outputs_are_lists(server: RunningServer) -> None:
    body = {"text_input": PROMPT, "exclude_input_in_output": True, "return_finish_reason": True, "n": 2, **SAMPLING}
    answer = post(server, body).json()
    expected = [alone(server, 7 + i)["text_output"] for i in range(2)]
    assert answer["text_output"] == expected
    assert answer["finish_reason"] == ["length", "length"]
    pieces = events(post(server, {"text_input": PROMPT, "stream": True, "n": 2, **SAMPLING}, path="generate_stream"))
    for i in range(2):
        assert "".join(piece["text_output"][i] for piece in pieces) == expected[i]


def test_without_a_seed_they_differ(server: RunningServer) -> None:
    body = {"text_input": PROMPT, "temperature": 1.5, "max_tokens": 12, "n": 16}
    assert len(set(post(server, body).json()["text_output"])) > 8


def test_stop_ends_all_of_them_with_one_last_response(server: RunningServer) -> None:
    parameters = json.dumps(SAMPLING | {"n": 4, "max_tokens": 900, "ignore_eos": True})
    pieces = []
    with grpc_client.InferenceServerClient(server.grpc) as stopper:
        for piece in grpc_arrays(
            server,
            request_id="four-of-one",
            text_input=PROMPT,
            stream=True,
            sampling_parameters=parameters,
            return_finish_reason=True,
        ):
            if not pieces:
                stop = grpc_client.InferInput("stop", [1], "BOOL")
                stop.set_data_from_numpy(np.array([True]))
                stopper.start_stream(lambda result, error: None)
                stopper.async_stream_infer("orthrus", [stop], request_id="four-of-one")
            pieces.append(piece)
    assert [piece["final"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert set(pieces[-1]["finish_reason"]) == {b"cancelled"}
    balanced(server)


def test_a_stream_that_is_left_ends_all_of_them(server: RunningServer) -> None:
    parameters = json.dumps(SAMPLING | {"n": 4, "max_tokens": 900, "ignore_eos": True})
    cancelled = metric(server, "orthrus_requests_total", kind="generate", outcome="cancelled")
    pieces = grpc_arrays(server, "orthrus", text_input=PROMPT, stream=True, sampling_parameters=parameters)
    next(pieces)
    pieces.close()
    wait_for(server, "orthrus_requests_total", cancelled + 4, kind="generate", outcome="cancelled")
    balanced(server)
