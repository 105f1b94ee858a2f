"""What the gateway refuses, with which status, and that it goes on afterwards."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import KEY
from tests.gateway.serving import RunningGateway

PATHS = ["completions", "chat/completions", "embeddings"]
HEADERS = [None, "", KEY, f"Basic {KEY}", "Bearer", "Bearer x", f"Bearer {KEY}x", "Bearer \xe9"]
AS_JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "Hi"}]
JSON = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
NO_TEXT = [{"role": "user", "content": [{"type": "text"}]}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}


@pytest.fixture(scope="module")
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with gateway.http() as opened:
        yield opened


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which has OpenAI's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["message"]
    return document["error"]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("completions", {"prompt": "Hi", "top_p": 7}, "top_p", "less than or equal to 1 (got 7"),
        ("completions", {"prompt": "Hi", "top_p": 7, "stream": True}, "top_p", "less than or equal to 1 (got 7"),
        (
            "completions",
            {"prompt": "Hi", "max_tokens": 5000},
            None,
            "max_tokens 5000 exceed the model's limit of 1024",
        ),
        ("completions", {"prompt": "Hi", "temperature": "hot"}, "temperature", "valid number, got 'hot'"),
        ("completions", {"prompt": "Hi", "max_token": 3}, "max_token", "not permitted, got 3"),
        ("completions", {"prompt": "Hi", "suffix": "."}, "suffix", "suffix is not supported"),
        ("completions", {"prompt": "Hi", "best_of": 2}, "best_of", "best_of 2 is not supported"),
        ("completions", {"prompt": "Hi", "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ("completions", {"prompt": [5, 6], "echo": True}, "echo", "not token ids"),
        ("completions", {"prompt": "Hi", "echo": True, "logprobs": 1}, "echo", "logprobs"),
        ("completions", {"prompt": ""}, None, "empty"),
        ("completions", {"prompt": []}, "prompt", "at least 1 item"),
        ("completions", {"prompt": None}, "prompt", "required"),
        ("completions", {"prompt": ["a"] * 129}, "prompt", "at most 128 items"),
        ("completions", {"prompt": [-1]}, "prompt", "greater than or equal to 0, got -1"),
        ("completions", {"prompt": [10**6]}, None, "token id 1000000 is outside the vocabulary"),
        ("completions", {"prompt": "Hi", "n": 2, "temperature": 0}, "n", "n 2 with temperature 0"),
        ("completions", {"prompt": "\ud800"}, "prompt", "Unicode"),
        ("completions", {"prompt": "Hi", "stop": ["\ud800"]}, "stop", "unicode string"),
        ("chat/completions", {"messages": []}, "messages", "at least 1 item"),
        ("chat/completions", {"messages": "Hi"}, "messages", "valid list, got 'Hi'"),
        ("chat/completions", {"messages": [{"role": "boss", "content": "Hi"}]}, "messages", "messages.0.role: "),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages", "messages.0.content: Field required"),
        ("chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, None, "Unicode"),
        ("chat/completions", {"messages": USER, "tools": [TOOL]}, "tools", "tools is not supported"),
        (
            "chat/completions",
            {"messages": USER, "response_format": JSON},
            "response_format",
            "not supported",
        ),
        ("chat/completions", {"messages": USER, "modalities": ["text", "audio"]}, "modalities", "not supported"),
        ("chat/completions", {"messages": USER, "audio": {"format": "wav", "voice": "a"}}, "audio", "not supported"),
        ("chat/completions", {"messages": USER, "top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ("chat/completions", {"messages": IMAGE}, "messages", "messages.0.content.0 of type 'image_url'"),
        ("chat/completions", {"messages": NO_TEXT}, "messages", "messages.0.content: Field required"),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "messages", "tool_calls"),
        ("chat/completions", {"messages": [{"role": "assistant"}]}, "messages", "content is missing"),
        ("embeddings", {"input": []}, "input", "at least 1 item"),
        ("embeddings", {"input": ["fine", 3]}, "input", "input.1: Input should be a valid string, got 3"),
        ("embeddings", {"input": ["fine", ""]}, None, "text 1: the text is empty"),
        ("embeddings", {"input": "Hi", "dimensions": 5000}, None, "dimensions 5000 is above the model's 576"),
        ("embeddings", {"input": "Hi", "pooling": "sum"}, "pooling", "sum"),
        ("embeddings", {"input": "Hi", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64', got 'hex'"),
        ("embeddings", {"input": ["a"] * 2049}, "input", "at most 2048 items"),
    ],
)
def test_a_fault_is_named(
    http: httpx.Client, model: str, path: str, body: dict[str, Any], param: str | None, words: str
) -> None:
    refusal = error(http.post(f"/v1/{path}", content=_json(body | {"model": model}), headers=AS_JSON), 400)
    assert words in refusal["message"]
    assert refusal["param"] == param
    assert refusal["type"] == "invalid_request_error"


def _json(body: dict[str, Any]) -> bytes:
    """As httpx does it, but lone surrogates too."""
    return json.dumps(body).encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b"\xff", b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}"])
def test_what_is_no_object_of_json_is_refused(http: httpx.Client, path: str, body: bytes) -> None:
    error(http.post(f"/v1/{path}", content=body, headers=AS_JSON), 400)


def test_an_unknown_model_is_not_found(http: httpx.Client, client: openai.OpenAI, model: str) -> None:
    for name in ("gpt-4", f"{model}:nobody", "", "\ud800"):
        for path, rest in (
            ("completions", {"prompt": "Hi"}),
            ("chat/completions", {"messages": USER}),
            ("embeddings", {"input": "Hi"}),
        ):
            refusal = error(http.post(f"/v1/{path}", content=_json({"model": name} | rest), headers=AS_JSON), 404)
            assert (refusal["param"], refusal["code"]) == ("model", "model_not_found")
            assert model in refusal["message"] or "unknown adapter 'nobody'" in refusal["message"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    assert client.models.retrieve(model).id == model


def test_other_addresses_and_methods(http: httpx.Client) -> None:
    error(http.get("/v1/nothing"), 404)
    error(http.get("/v1/completions"), 405)
    assert http.get("/openapi.json").status_code == 200


@pytest.mark.parametrize("header", HEADERS)
def test_without_the_key_nothing_is_told(gateway: RunningGateway, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    with httpx.Client(base_url=gateway.url, headers=headers) as stranger:
        for answer in (stranger.get("/v1/models"), stranger.post("/v1/embeddings", content=b"{}"), stranger.get("/v1")):
            assert error(answer, 401)["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert stranger.get("/health").json() == {"status": "ok"}
    assert KEY not in gateway.log.read_text()


def test_openais_client_knows_the_refusals(gateway: RunningGateway, client: openai.OpenAI, model: str) -> None:
    stranger = openai.OpenAI(base_url=gateway.api, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.completions.create(model=model, prompt="Hi", top_p=7, stream=True)


def test_a_large_body_is_refused_however_it_is_sent(http: httpx.Client, model: str) -> None:
    def pieces() -> Iterator[bytes]:  # chunked: nothing tells the size beforehand
        yield b'{"model": "m", "input": "'
        for _ in range(40):
            yield b"a" * 65536

    large = {"model": model, "input": "a" * (1 << 20)}
    assert error(http.post("/v1/embeddings", json=large), 413)["code"] == "request_too_large"
    chunked = http.post("/v1/embeddings", content=pieces(), headers=AS_JSON)
    assert "1048576 bytes" in error(chunked, 413)["message"]
    assert http.post("/v1/embeddings", json={"model": model, "input": "a"}).status_code == 200


def test_other_origins_are_not_let_in(http: httpx.Client) -> None:
    headers = {"Origin": "http://elsewhere.example", "Access-Control-Request-Method": "POST"}
    answer = http.options("/v1/completions", headers=headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]
