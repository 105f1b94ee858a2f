"""Overload, and the end: a server of its own with narrow limits, which the last test stops.

What is too much is refused at once; after SIGTERM what can finish finishes, the rest gets an error, and nothing hangs.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_client
from openai import APIStatusError, OpenAI
from tritonclient.utils import InferenceServerException

from tests.gateway.serving import running_gateway
from tests.server.test_generate import grpc_stream, post
from tests.server.test_mixed import wait_for
from tests.serving import RunningServer, left_over, orthrus_serve, running


class Caller(threading.Thread):
    """Makes one call; keeps what came of it."""

    def __init__(self, call: Any) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.started, self.leave = threading.Event(), threading.Event()
        self.result: Any = None
        self.error: InferenceServerException | requests.RequestException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call(self)
        except (InferenceServerException, requests.RequestException) as error:
            self.error = error


def stream(server: RunningServer, max_tokens: int, model: str = "generate") -> Caller:
    def call(caller: Caller) -> list[dict[str, Any]]:
        responses = []
        for response in grpc_stream(
            server,
            model,
            text_input="Once upon a time",
            stream=True,
            max_tokens=max_tokens,
            sampling_parameters='{"temperature": 0, "ignore_eos": true}',
            return_finish_reason=True,
        ):
            responses.append(response)
            caller.started.set()
            if caller.leave.is_set():
                break
        return responses

    return Caller(call)


def embed(server: RunningServer, *texts: bytes) -> np.ndarray:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        tensor = grpc_client.InferInput("text_input", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array(texts, dtype=np.object_))
        return client.infer("embed", [tensor]).as_numpy("embedding")


def embedding(server: RunningServer, *texts: bytes) -> Caller:
    def call(caller: Caller) -> np.ndarray:
        caller.started.set()
        return embed(server, *texts)

    return Caller(call)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = ("--max-queued-requests=4", "--max-texts-per-request=6", "--max-request-bytes=1MiB", "--max-running=2")
    log = tmp_path_factory.mktemp("narrow") / "stderr.log"
    with running(orthrus_serve(*limits, "--drain-timeout=8", "--threads=1"), log) as server:
        yield server


def refusal(call: Callable[[], Any]) -> tuple[str, str]:
    """Status and message of a call that is refused."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


@contextmanager
def full(server: RunningServer) -> Iterator[None]:
    """While two generations run and four wait, which is all that there is room for; those four end afterwards."""
    running_ones = [stream(server, 2000, model="orthrus") for _ in range(2)]
    for caller in running_ones:
        assert caller.started.wait(60)
    waiting = [stream(server, 2, model="orthrus") for _ in range(4)]
    wait_for(server, "orthrus_requests_waiting", 4, kind="generate")
    try:
        yield
    finally:
        for caller in running_ones:
            caller.leave.set()
    for caller in (*running_ones, *waiting):
        caller.join(60)
    assert all(caller.result[-1]["finish_reason"] == b"length" for caller in waiting)


def test_a_full_queue_refuses_its_kind_at_once_and_says_what_waits(narrow: RunningServer) -> None:
    with full(narrow):
        begun = time.monotonic()
        answer = post(narrow, {"text_input": "one more"})
        assert time.monotonic() - begun < 5
        assert "unavailable: the generate queue is full: 4 requests with " in answer.text
        assert " the limits are 4 requests and 524288 tokens" in answer.text
        _, message = refusal(lambda: next(grpc_stream(narrow, text_input="one more")))
        assert "queue is full" in message
        assert embed(narrow, b"the other kind has room").shape == (1, 576)
    assert post(narrow, {"text_input": "one more", "max_tokens": 1}).status_code == 200


def test_behind_the_gateway_openais_client_is_told_to_come_back_and_does(narrow: RunningServer, tmp_path: Path) -> None:
    one: Any = {"model": "m", "prompt": "one more", "max_tokens": 1}
    with running_gateway(narrow.grpc, tmp_path / "log", "--model-name=m") as gateway, ThreadPoolExecutor() as threads:
        options: Any = {"base_url": gateway.api, "api_key": "none"}
        with OpenAI(**options, max_retries=0) as hasty, OpenAI(**options, max_retries=60) as patient:
            with full(narrow):
                for streaming in (False, True):
                    with pytest.raises(APIStatusError, match="the generate queue is full: 4 requests with") as refused:
                        hasty.completions.create(**one, stream=streaming)
                    assert refused.value.status_code == 503
                    assert refused.value.response.headers["retry-after"] == "1"
                    assert set(refused.value.response.json()["error"]) == {"message", "type", "param", "code"}
                    assert (refused.value.type, refused.value.code) == ("server_error", "unavailable")
                assert hasty.embeddings.create(model="m", input="the other kind has room").data
                told = gateway.log.read_text().count(" 503 ")
                answer = threads.submit(patient.completions.create, **one)
                wait_until(lambda: gateway.log.read_text().count(" 503 ") > told + 1)  # told again to come back
            assert answer.result(60).choices[0].finish_reason == "length"


def wait_until(holds: Callable[[], bool], within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_embedding_beyond_the_limit_is_unavailable(narrow: RunningServer) -> None:
    first = [embedding(narrow, *[b"many words " * 120] * 6) for _ in range(3)]  # an empty queue takes one of any size
    for caller in first:
        caller.join(120)
    errors = [caller.error for caller in first if caller.error is not None]
    assert len(errors) in (1, 2)
    assert all(error.status() == "StatusCode.UNAVAILABLE" for error in errors)
    assert all("the embed queue is full" in error.message() for error in errors)


def test_texts_and_bytes_of_one_request_are_capped(narrow: RunningServer) -> None:
    status, message = refusal(lambda: embed(narrow, *[b"x"] * 7))
    assert status == "StatusCode.INVALID_ARGUMENT"
    assert message.endswith("7 texts in one request; the limit is 6 (max_texts_per_request)")
    status, message = refusal(lambda: embed(narrow, b"x" * 600_000, b"y" * 600_000))
    assert status == "StatusCode.INVALID_ARGUMENT"
    assert "bytes; the limit is 1048576 (max_request_bytes)" in message
    answer = post(narrow, {"text_input": "x" * 1_100_000})
    assert answer.status_code == 400
    assert "bytes; the limit is 1048576 (max_request_bytes)" in answer.text


def test_running_work_is_finished_or_failed_and_the_server_ends_in_time(narrow: RunningServer) -> None:
    endless, short = stream(narrow, 8000), stream(narrow, 8)
    vectors = embedding(narrow, b"some words " * 20, b"and some more")
    for caller in (endless, vectors):
        assert caller.started.wait(60)
    processes = narrow.processes()
    narrow.process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    while (answer := post(narrow, {"text_input": "Hi", "max_tokens": 1})).status_code == 200:
        assert time.monotonic() - told < 5
    assert "unavailable: the engine is shutting down" in answer.text
    status, message = refusal(lambda: embed(narrow, b"late"))
    assert (status, "shutting down" in message) == ("StatusCode.UNAVAILABLE", True)
    assert narrow.process.wait(30) == 0
    assert time.monotonic() - told < 8 + 7
    for caller in (short, endless, vectors):
        caller.join(10)
        assert not caller.is_alive()
    assert short.error is None
    assert short.result[-1]["finish_reason"] == b"length"
    assert vectors.error is None
    assert vectors.result.shape == (2, 576)
    assert endless.error is not None
    assert "the server is shutting down" in endless.error.message()
    assert not left_over(processes, within=5)
