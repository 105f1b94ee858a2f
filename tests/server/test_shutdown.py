"""SIGTERM while requests of both kinds run: what can finish finishes, the rest gets an error, and nothing hangs."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.server.test_generate import grpc_stream
from tests.serving import RunningServer, left_over, orthrus_serve, running


class Caller(threading.Thread):
    """Makes one call; keeps what came of it."""

    def __init__(self, call: Any) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.started = threading.Event()
        self.result: Any = None
        self.error: InferenceServerException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call(self.started)
        except InferenceServerException as error:
            self.error = error


def stream(server: RunningServer, max_tokens: int) -> Caller:
    def call(started: threading.Event) -> list[dict[str, Any]]:
        responses = []
        for response in grpc_stream(
            server,
            text_input="Once upon a time",
            stream=True,
            max_tokens=max_tokens,
            sampling_parameters='{"temperature": 0, "ignore_eos": true}',
            return_finish_reason=True,
        ):
            responses.append(response)
            started.set()
        return responses

    return Caller(call)


def embed(server: RunningServer, texts: int) -> Caller:
    def call(started: threading.Event) -> np.ndarray:
        with grpc_client.InferenceServerClient(server.grpc) as client:
            tensor = grpc_client.InferInput("text_input", [texts], "BYTES")
            tensor.set_data_from_numpy(np.array([b"many words " * 100] * texts, dtype=np.object_))
            started.set()
            return client.infer("embed", [tensor]).as_numpy("embedding")

    return Caller(call)


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    with running(orthrus_serve("--drain-timeout=6"), tmp_path / "stderr.log") as server:
        yield server


def test_running_work_is_finished_or_failed_and_the_server_ends_in_time(own_server: RunningServer) -> None:
    short, endless, vectors = stream(own_server, 30), stream(own_server, 4000), embed(own_server, 4)
    for caller in (short, endless, vectors):
        assert caller.started.wait(60)
    processes = own_server.processes()
    own_server.process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    assert own_server.process.wait(20) in (0, 1)
    assert time.monotonic() - told < 15
    for caller in (short, endless, vectors):
        caller.join(10)
        assert not caller.is_alive()
    assert short.error is None
    assert short.result[-1]["finish_reason"] == b"length"
    assert vectors.error is None
    assert vectors.result.shape == (4, 576)
    assert endless.error is not None
    assert not left_over(processes, within=5)
