"""A plain tritonserver as in a container: models come and go, and a hook drains the engine before the stop."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests

from orthrus_backend.serve.layout import lay_out
from orthrus_backend.serve.ports import choose_endpoints
from orthrus_backend.serve.triton_binary import find_triton
from orthrus_backend.serve.workspace import workspace
from tests.server.test_generate import post
from tests.server.test_shutdown import stream
from tests.serving import RunningServer

OPTIONS = (
    *("--disable-auto-complete-config", "--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false"),
    *("--model-control-mode=explicit", "--load-model=generate", "--exit-timeout-secs=5"),
)


@dataclass(frozen=True, slots=True)
class Plain:
    """A tritonserver without `orthrus serve`."""

    server: RunningServer
    drain: Path

    @property
    def triton(self) -> psutil.Process:
        return psutil.Process(self.server.pid)

    def control(self, action: str) -> None:
        """Load or unload the engine; the answer comes when it is done."""
        url = f"http://{self.server.http}/v2/repository/models/orthrus/{action}"
        answer = requests.post(url, json={}, timeout=120)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def plain(tmp_path: Path, small_model: Path) -> Iterator[Plain]:
    with workspace() as folder, (tmp_path / "log").open("wb") as log:
        triton, endpoints, drain = (
            find_triton(),
            choose_endpoints("127.0.0.1", http=0, grpc=0, metrics=0),
            folder / "drain",
        )
        parameters = {"model": str(small_model), "device": "cpu", "kv_memory": "4MiB", "drain_file": str(drain)}
        layout = lay_out(folder, triton, parameters, 1)
        places = {"model-repository": layout.models, "backend-directory": layout.backends}
        for protocol, address in endpoints.as_dict().items():
            host, _, port = address.rpartition(":")
            places |= {f"{protocol}-address": host, f"{protocol}-port": port}
        command = [str(triton.server), *OPTIONS, *(f"--{name}={value}" for name, value in places.items())]
        command.append(f"--backend-config=python,shm-region-prefix-name={folder.name}-")
        process = subprocess.Popen(command, env=triton.environment(os.environ), stdout=log, stderr=log, text=True)
        try:
            server = RunningServer(**endpoints.as_dict(), process=process, log=tmp_path / "log")
            wait_until_ready(server)
            yield Plain(server, drain)
        finally:
            process.kill()
            process.wait()


def wait_until_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(requests.ConnectionError):
            if requests.get(f"http://{server.http}/v2/models/generate/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError("the server did not get ready")


@pytest.mark.timeout(900)  # the engine is loaded six times
def test_load_and_unload_five_times_then_a_hook_and_the_end(plain: Plain) -> None:
    server, footprints = plain.server, []
    for _ in range(5):
        running_one = stream(server, 60)
        assert running_one.started.wait(30)
        plain.control("unload")  # Triton answers before it has unloaded, and lets what runs finish
        assert psutil.wait_procs(plain.triton.children(), timeout=30)[1] == []
        running_one.join(5)
        assert running_one.error is None
        assert running_one.result[-1]["finish_reason"] == b"length"
        footprints.append((plain.triton.num_threads(), plain.triton.memory_info().rss))
        assert post(server, {"text_input": "a cat"}).status_code in (400, 404)
        plain.control("load")
    assert footprints[-1][0] < footprints[1][0] + 3  # less than one thread for each time; gRPC has more or fewer
    assert footprints[-1][1] < footprints[1][1] * 1.05

    running_one = stream(server, 60)
    assert running_one.started.wait(30)
    subprocess.run(["sh", "-c", f"echo . >{plain.drain} && flock {plain.drain} true"], check=True, timeout=60)
    running_one.join(5)
    assert not running_one.is_alive()
    assert running_one.error is None
    assert "shutting down" in post(server, {"text_input": "a cat"}).text
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
