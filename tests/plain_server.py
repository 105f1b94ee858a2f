"""Starts a tritonserver without `orthrus serve`, as in a container: models come and go, and nobody looks after it."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil
import requests

from orthrus_backend.serve.layout import lay_out
from orthrus_backend.serve.ports import choose_endpoints
from orthrus_backend.serve.triton_binary import find_triton
from orthrus_backend.serve.workspace import workspace
from tests.serving import RunningServer

OPTIONS = (
    *("--disable-auto-complete-config", "--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false"),
    *("--model-control-mode=explicit", "--exit-timeout-secs=5"),
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


@contextmanager
def plain_server(
    log: Path,
    parameters: Mapping[str, str],
    load: Sequence[str],
    instances: int = 1,
    models: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Plain]:
    """Start one and wait for the models `load`.

    Args:
        log: the file that it writes to.
        parameters: of the engine, beside the CPU and a file to drain it.
        load: entry points that are loaded, with all that they need.
        instances: how many engines.
        models: code in the place of a model's own.
    """
    with workspace() as folder, log.open("wb") as output:
        triton, drain = find_triton(), folder / "drain"
        endpoints = choose_endpoints("127.0.0.1", http=0, grpc=0, metrics=0)
        layout = lay_out(folder, triton, {**parameters, "device": "cpu", "drain_file": str(drain)}, instances)
        for name, code in models.items():
            (layout.models / name / "1" / "model.py").write_text(code)
        places = {"model-repository": layout.models, "backend-directory": layout.backends}
        for protocol, address in endpoints.as_dict().items():
            host, _, port = address.rpartition(":")
            places |= {f"{protocol}-address": host, f"{protocol}-port": port}
        command = [str(triton.server), *OPTIONS, *(f"--{name}={value}" for name, value in places.items())]
        command += [f"--load-model={name}" for name in load]
        command.append(f"--backend-config=python,shm-region-prefix-name={folder.name}-")
        process = subprocess.Popen(command, env=triton.environment(os.environ), stdout=output, stderr=output, text=True)
        try:
            server = RunningServer(**endpoints.as_dict(), process=process, log=log)
            wait_until_ready(server, load)
            yield Plain(server, drain)
        finally:
            process.kill()
            process.wait()


def wait_until_ready(server: RunningServer, models: Sequence[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(requests.ConnectionError):
            urls = [f"http://{server.http}/v2/models/{model}/ready" for model in models]
            if all(requests.get(url, timeout=5).status_code == 200 for url in urls):
                return
        time.sleep(0.2)
    raise AssertionError("the server did not get ready")
