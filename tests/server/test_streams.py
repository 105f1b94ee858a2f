"""Streams as a client sees them: the same text as without streaming, and no work for a client that has gone."""

import json
from pathlib import Path
from typing import Any

import pytest
import requests
from orthrus_client import OrthrusClient

from tests.reference import Reference
from tests.server.test_continuations import balanced
from tests.server.test_generate import events, grpc_stream, post
from tests.server.test_mixed import metric, wait_for
from tests.serving import RunningServer, orthrus_serve, running
from tests.small_model import tokenizer

PROMPT = "The capital of France is"


def whole_and_pieces(server: RunningServer, sampling: dict[str, Any]) -> tuple[str, list[str]]:
    """The answer without a stream, and the pieces of the one with it."""
    body = {"text_input": PROMPT, "sampling_parameters": json.dumps({"temperature": 0} | sampling)}
    whole = post(server, body | {"exclude_input_in_output": True}).json()["text_output"]
    pieces = events(post(server, body | {"stream": True}, path="generate_stream"))
    return whole, [piece["text_output"] for piece in pieces]


@pytest.mark.parametrize("emoji", ["😀", "🇫🇷", "你"])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_half_a_character_harms_nothing(
    server: RunningServer, reference: Reference, emoji: str, max_tokens: int
) -> None:
    first, *_ = reference.tokenizer(emoji)["input_ids"]
    sampling = {"max_tokens": max_tokens, "logit_bias": {first: 100}}
    whole, pieces = whole_and_pieces(server, sampling)
    assert whole == "".join(pieces) == reference.tokenizer.decode([first] * max_tokens)
    if max_tokens == 1:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces[:-1])


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_string_ends_both_ways_alike(server: RunningServer, reference: Reference, keep: bool) -> None:
    expected = reference.greedy_text(PROMPT, 12)
    stop = expected[5:14]  # over token borders
    sampling = {"max_tokens": 12, "stop": ["never said", stop], "include_stop_str_in_output": keep}
    whole, pieces = whole_and_pieces(server, sampling)
    end = expected.index(stop)
    assert whole == "".join(pieces) == (expected[: end + len(stop)] if keep else expected[:end])


def test_what_a_stop_string_held_back_comes_at_the_limit(server: RunningServer, reference: Reference) -> None:
    expected = reference.greedy_text(PROMPT, 12)
    sampling = {"max_tokens": 12, "stop": [expected[-6:] + "and never this"]}
    whole, pieces = whole_and_pieces(server, sampling)
    assert whole == "".join(pieces) == expected


def test_no_piece_holds_the_prompt(server: RunningServer, reference: Reference) -> None:
    whole, pieces = whole_and_pieces(server, {"max_tokens": 12})
    assert whole == "".join(pieces) == reference.greedy_text(PROMPT, 12)
    assert not any(PROMPT in piece for piece in pieces)


def test_a_closed_grpc_stream_ends_the_work(server: RunningServer) -> None:
    cancelled = metric(server, "orthrus_requests_total", kind="generate", outcome="cancelled")
    parameters = json.dumps({"max_tokens": 900, "ignore_eos": True})
    pieces = grpc_stream(server, "orthrus", text_input=PROMPT, stream=True, sampling_parameters=parameters)
    next(pieces)
    pieces.close()
    wait_for(server, "orthrus_requests_total", cancelled + 1, kind="generate", outcome="cancelled")
    balanced(server)


def test_a_closed_generate_stream_ends_the_work(server: RunningServer) -> None:
    cancelled = metric(server, "orthrus_requests_total", kind="generate", outcome="cancelled")
    body = {"text_input": PROMPT, "stream": True, "max_tokens": 900, "ignore_eos": True}
    url = f"http://{server.http}/v2/models/orthrus/generate_stream"
    with requests.post(url, json=body, timeout=60, stream=True) as answer:
        assert next(answer.iter_lines())
    wait_for(server, "orthrus_requests_total", cancelled + 1, kind="generate", outcome="cancelled")
    balanced(server)


def test_messages_carry_as_many_tokens_as_the_operator_says(small_model: Path, tmp_path: Path) -> None:
    (letter,) = tokenizer("none")("a")["input_ids"]
    command = orthrus_serve(f"--model={small_model}", "--stream-interval=4", "--kv-memory=16MiB", "--threads=1")
    with running(command, tmp_path / "log") as server, OrthrusClient(server.grpc) as client:
        sampling: dict[str, Any] = {"logit_bias": {letter: 100}, "ignore_eos": True}
        for tokens, expected in ((1, [1]), (5, [1, 4]), (12, [1, 4, 4, 3])):
            chunks = list(client.stream("a cat", max_tokens=tokens, **sampling))
            assert [(chunk.text, chunk.num_output_tokens) for chunk in chunks] == [("a" * n, n) for n in expected]
        chunks = list(client.stream("a cat", max_tokens=12, n=2, **sampling))
        assert sorted(sum(c.num_output_tokens for c in chunks if c.index == n) for n in range(2)) == [12, 12]
        assert client.generate("a cat", max_tokens=12, **sampling).text == "a" * 12
