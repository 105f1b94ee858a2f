"""Starts gateways for tests as a user would: `orthrus-client gateway` in a process of its own, on a free port."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A running gateway: where it listens, the key that it wants, its process and its log."""

    url: str
    key: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def api(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"

    def http(self) -> httpx.Client:
        """A client that sends the key."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.key or 'none'}"}, timeout=120)


def gateway_command(upstream: str, *options: str) -> list[str]:
    """The command line of a gateway on a free port; `python -m orthrus_client` is `orthrus-client`."""
    return [sys.executable, "-m", "orthrus_client", "gateway", f"--url={upstream}", "--port=0", *options]


@contextmanager
def running_gateway(upstream: str, log: Path, *options: str, key: str = "") -> Iterator[RunningGateway]:
    """A gateway that asks the server at `upstream`; ended afterwards, if it still runs."""
    environment = {name: value for name, value in os.environ.items() if name != "ORTHRUS_API_KEY"}
    environment |= {"ORTHRUS_API_KEY": key} if key else {}
    command = gateway_command(upstream, *options)
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the gateway did not start:\n{log.read_text(encoding='utf-8')[-4000:]}"
        yield RunningGateway(f"http://{json.loads(line)['http']}", key, process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
