"""Starts an `orthrus serve` for as long as an example needs it. Knows its command line, not what it serves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of a server, each host:port."""

    http: str
    grpc: str
    metrics: str


@contextmanager
def local_server(*options: str) -> Iterator[Endpoints]:
    """A server on free ports, from when it is ready to the end of the block. Its messages go to stderr.

    Raises:
        RuntimeError: `orthrus` is not installed beside this Python, or the server did not start.
    """
    orthrus = Path(sys.executable).with_name("orthrus")
    if not orthrus.exists():
        raise RuntimeError(f"{orthrus} is missing: install the server into this environment, or name one with --url")
    command = [str(orthrus), "serve", "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--no-request-log"]
    command += options
    process: subprocess.Popen[str] | None = None
    try:
        with _signals_later():  # one between the start and the assignment would leave it behind
            # A session of its own: Ctrl-C reaches us alone, and we stop it in order.
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {' '.join(command)} ended with {process.wait()}")
        yield Endpoints(**json.loads(line))
    finally:
        if process is not None:
            with _signals_later():  # an impatient second Ctrl-C must not leave it behind
                _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _signals_later() -> Iterator[None]:
    """Hold back what asks for an end until the block has ended."""
    held: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in dict.fromkeys(held):
            signal.raise_signal(came)
