"""A gateway's life: clients that leave, time that runs out, a server that is away, and a clean end."""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from orthrus_client.cli.app import app
from orthrus_client.gateway import command
from typer.testing import CliRunner

from tests.gateway.serving import RunningGateway, running_gateway
from tests.server.test_mixed import metric, wait_for
from tests.serving import RunningServer

LONG: Any = {"prompt": "Once", "max_tokens": 1000, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def hasty(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway without a key that gives a request five seconds and calls the model by another name."""
    log = tmp_path_factory.mktemp("hasty") / "stderr.log"
    with running_gateway(server.grpc, log, "--timeout=5", "--model-name=mine", "--log-level=warning") as running:
        yield running


def cancelled(server: RunningServer) -> float:
    return metric(server, "orthrus_requests_total", kind="generate", outcome="cancelled")


def all_cancelled(server: RunningServer, before: float, count: int = 1) -> None:
    """So many requests more were cancelled, and nothing runs any more."""
    wait_for(server, "orthrus_requests_total", before + count, kind="generate", outcome="cancelled")
    wait_for(server, "orthrus_requests_running", 0)
    wait_for(server, "orthrus_requests_waiting", 0)


def test_a_stream_that_is_left_ends_the_work(gateway: RunningGateway, server: RunningServer, model: str) -> None:
    before = cancelled(server)
    body = LONG | {"model": model, "stream": True, "prompt": ["Once", "Twice"]}
    with gateway.http() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    all_cancelled(server, before, 2)


def test_an_answer_that_nobody_waits_for_ends_the_work(
    gateway: RunningGateway, server: RunningServer, model: str
) -> None:
    before, running = cancelled(server), metric(server, "orthrus_requests_received_total", kind="generate")
    messages = [{"role": "user", "content": "Count."}]
    chat = {"model": model, "messages": messages, "max_tokens": 900, "temperature": 0, "ignore_eos": True}
    with gateway.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=chat, timeout=3)
    wait_for(server, "orthrus_requests_received_total", running + 1, kind="generate")
    all_cancelled(server, before)


def test_time_runs_out(hasty: RunningGateway, server: RunningServer) -> None:
    before = cancelled(server)
    with openai.OpenAI(base_url=hasty.api, api_key="none is asked for", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["mine"]
        options = {name: LONG[name] for name in ("prompt", "max_tokens", "temperature")}
        extra = {"ignore_eos": True}
        with pytest.raises(openai.APIStatusError) as whole:
            client.completions.create(model="mine", extra_body=extra, **options)
        assert whole.value.status_code == 504
        pieces = []
        with pytest.raises(openai.APIError, match=r"not finished within 5\.0 s"):
            pieces.extend(client.completions.create(model="mine", stream=True, extra_body=extra, **options))
    all_cancelled(server, before, 2)


def test_sigterm_lets_a_stream_end_and_is_no_failure(hasty: RunningGateway) -> None:
    """The last test of this gateway. The stream's own end is that its time runs out."""
    with (
        hasty.http() as http,
        http.stream("POST", "/v1/completions", json=LONG | {"model": "mine", "stream": True}) as it,
    ):
        lines = it.iter_lines()
        next(lines)
        hasty.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert len(rest) > 2
    assert "not finished within 5.0 s" in rest[-1]
    assert hasty.process.wait(20) == 0
    assert "Traceback" not in hasty.log.read_text()


def test_a_server_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    with running_gateway("127.0.0.1:1", tmp_path / "log") as gateway, gateway.http() as http:
        body = {"model": "m", "prompt": "Hi"}
        for answer in (http.get("/health"), http.get("/v1/models"), http.post("/v1/completions", json=body)):
            assert answer.status_code == 503
            assert answer.json()["error"]["type"] == "server_error"
            assert answer.json()["error"]["code"] == "unavailable"
            assert answer.headers["retry-after"] == "1"
        assert "Traceback" not in gateway.log.read_text()


def test_health_asks_the_engine_at_most_once_a_second(gateway: RunningGateway, server: RunningServer) -> None:
    with gateway.http() as http:
        time.sleep(1.1)
        before = metric(server, "orthrus_requests_received_total", kind="generate")
        start = time.monotonic()
        answers = [http.get("/health").status_code for _ in range(20)]
        took = time.monotonic() - start
    assert answers == [200] * 20
    time.sleep(1)  # metrics are published twice a second
    asked = metric(server, "orthrus_requests_received_total", kind="generate") - before
    assert 1 <= asked <= 1 + took


class TestCommand:
    @pytest.fixture(autouse=True)
    def _no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(command.KEY_VARIABLE, raising=False)

    @pytest.mark.parametrize(
        ("options", "key", "words"),
        [
            ([], "", "ORTHRUS_API_KEY is set, but is no key"),
            ([], "clé", "ORTHRUS_API_KEY is set, but is no key"),
            (["--port=70000"], None, "65535"),
            (["--max-body=0"], None, "max-body"),
            (["--url=http://localhost:8000"], None, "http://localhost:8000"),
        ],
    )
    def test_what_cannot_be_is_refused_before_it_listens(
        self, monkeypatch: pytest.MonkeyPatch, options: list[str], key: str | None, words: str
    ) -> None:
        if key is not None:
            monkeypatch.setenv(command.KEY_VARIABLE, key)
        result = CliRunner().invoke(app, ["gateway", *options], env={"COLUMNS": "200"})
        assert result.exit_code in (1, 2)
        assert words in result.stderr
        assert "Traceback" not in result.stderr

    def test_a_port_that_is_taken_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            result = CliRunner().invoke(app, ["gateway", f"--port={port}"])
        assert result.exit_code == 2
        assert f"error: --port {port}: cannot listen on 127.0.0.1:{port}: Address already in use" in result.stderr

    @pytest.mark.parametrize(
        ("host", "key", "words"),
        [
            ("127.0.0.1", None, []),
            ("::1", None, []),
            ("localhost", None, []),
            ("0.0.0.0", None, ["WARNING", "0.0.0.0:8080", "/v1", "/health", "asks nobody for a key"]),
            ("0.0.0.0", "k", ["WARNING", "0.0.0.0:8080", "clear text"]),
            ("example.org", "k", ["WARNING"]),
        ],
    )
    def test_what_is_exposed_is_said(
        self, monkeypatch: pytest.MonkeyPatch, host: str, key: str | None, words: list[str]
    ) -> None:
        """It does not listen here: that would let other machines in."""

        def announced(*arguments: Any) -> bool:
            arguments[-1](f"{host}:8080")
            return True

        monkeypatch.setattr("orthrus_client.gateway.server.run", announced)
        if key is not None:
            monkeypatch.setenv(command.KEY_VARIABLE, key)
        result = CliRunner().invoke(app, ["gateway", f"--host={host}"])
        assert result.exit_code == 0, result.output
        assert result.stdout == f'{{"http": "{host}:8080"}}\n'
        assert all(word in result.stderr for word in words)
        assert ("WARNING" in result.stderr) == bool(words)
