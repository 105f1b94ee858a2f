"""Starts servers for tests as a user would: `orthrus serve` in a process of its own, on free ports."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server: its addresses as `host:port`, and the process that looks after it."""

    http: str
    grpc: str
    metrics: str
    process: subprocess.Popen[str]
    log: Path  # what it writes to stderr

    @property
    def pid(self) -> int:
        """Process id of `orthrus serve`; the tritonserver is its child."""
        return self.process.pid

    def processes(self) -> list[psutil.Process]:
        """`orthrus serve` and all that it started."""
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]


def orthrus_serve(*options: str) -> list[str]:
    """The command line of a server on free ports."""
    orthrus = Path(sys.executable).parent / "orthrus"
    return [str(orthrus), "serve", "--http-port=0", "--grpc-port=0", "--metrics-port=0", *options]


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    temporary: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RunningServer]:
    """Start `command`, wait until it says that it is ready, and end it afterwards. Its stderr goes to `log`.

    `variables` are added to its environment.
    """
    environment = os.environ | ({"TMPDIR": str(temporary)} if temporary else {}) | dict(variables)
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the server did not get ready:\n{log.read_text(encoding='utf-8')[-4000:]}"
        yield RunningServer(**json.loads(line), process=process, log=log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def left_over(processes: Sequence[psutil.Process], within: float) -> list[psutil.Process]:
    """Those of `processes` that still run after `within` seconds."""
    return psutil.wait_procs(processes, timeout=within)[1]
