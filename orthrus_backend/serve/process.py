"""One tritonserver as a child process: started, awaited, watched, stopped. Knows nothing of models or parameters.

The child and its stub processes never outlive this process: they are a process group of their own, which is ended with
the child, and the kernel ends the child should this process die without a word.
"""

import ctypes
import json
import math
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

import psutil

from orthrus_backend.serve.ports import Endpoints

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
POLL_SECONDS = 0.2
IDLE_SECONDS = 2.0  # more than it takes until an accepted request shows in the metrics
PROBE_SECONDS = 2.0


class ServerError(RuntimeError):
    """The server did not start, or ended when nobody asked it to."""


class TritonProcess:
    """A running tritonserver. Start it in the main thread: the kernel ties the child's life to the starting thread."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], endpoints: Endpoints, name: str) -> None:
        """`name` is what the server calls itself, so that no other server is taken for this one."""
        self._endpoints = endpoints
        self._name = name
        self._stop_by: float | None = None
        self._stubs: list[psutil.Process] = []
        self._closed = False
        self._child = subprocess.Popen(
            [*command, f"--id={name}"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process only, which then stops the server in order
            preexec_fn=_dies_with_parent(),
        )

    @property
    def output(self) -> IO[bytes]:
        """What the server and its stubs write, both streams in one."""
        assert self._child.stdout is not None
        return self._child.stdout

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_by is not None

    def wait_until_ready(self, timeout: float) -> None:
        """Return when all models are loaded and all ports answer, or when `stop` was called.

        Raises:
            ServerError: the server ended, or `timeout` seconds passed.
        """
        deadline = time.monotonic() + timeout
        while not self.stopping and not self._ready():
            if self._child.poll() is not None and not self.stopping:
                raise ServerError(f"tritonserver ended before it was ready ({_ending(self._child.returncode)})")
            if time.monotonic() > deadline:
                raise ServerError(f"tritonserver was not ready after {timeout:g} s")
            time.sleep(POLL_SECONDS)
        self._stubs = psutil.Process(self._child.pid).children() if not self.stopping else []

    def stop(self, grace: float) -> None:
        """Ask the server to finish what runs, for at most `grace` seconds; asked again, it ends at once."""
        if self.stopping:
            self._kill_group()
            return
        self._stop_by = time.monotonic() + grace
        self._child.terminate()

    def watch(self) -> None:
        """Return when `stop` was called.

        Raises:
            ServerError: the server ended by itself, or one of its stub processes died.
        """
        while not self.stopping:
            ended = self._child.poll() is not None
            if ended and not self.stopping:
                raise ServerError(f"tritonserver ended by itself ({_ending(self._child.returncode)})")
            if not all(map(_lives, self._stubs)) and not self.stopping:
                # Triton does not restart a stub, and 2.51 goes on saying that it is ready.
                raise ServerError("a model process of tritonserver died, so it cannot answer any more")
            time.sleep(POLL_SECONDS)

    def drain(self, idle: Callable[[], bool]) -> None:
        """Return when the server has ended, after `stop`.

        `idle` says whether no request is being worked on. A tritonserver that was told to stop takes no new connections
        and waits until open ones are closed, used or not. One that stays idle has nothing to wait for and is ended.

        Raises:
            ServerError: requests had to be cut off, or it did not end cleanly.
        """
        assert self._stop_by is not None
        idle_since = math.inf
        while self._child.poll() is None:
            idle_since = min(idle_since, time.monotonic()) if idle() else math.inf
            if time.monotonic() - idle_since > IDLE_SECONDS:
                return
            if time.monotonic() > self._stop_by:
                raise ServerError("tritonserver did not finish in time; what was still running was cut off")
            time.sleep(POLL_SECONDS)
        if self._child.returncode != 0:
            raise ServerError(f"tritonserver did not stop cleanly ({_ending(self._child.returncode)})")

    def close(self) -> None:
        """End whatever is left of the server and its stubs."""
        if not self._closed:
            self._kill_group()
            self._child.wait()
            self._closed = True

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _ready(self) -> bool:
        try:
            name = json.loads(fetch(f"http://{self._endpoints.http}/v2"))["name"]
            if name != self._name:
                raise ServerError(f"another server ({name!r}) answers on {self._endpoints.http}")
            fetch(f"http://{self._endpoints.http}/v2/health/ready")
            fetch(f"http://{self._endpoints.metrics}/metrics")
        except (OSError, ValueError, KeyError):
            return False
        return True


def fetch(url: str) -> bytes:
    """Body of a successful answer. No proxy: the server is on this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PROBE_SECONDS) as answer:
        body: bytes = answer.read()
    return body


def _dies_with_parent() -> Callable[[], None]:
    """What a child runs before it becomes the server: the kernel kills it when the parent is gone.

    Not with SIGTERM: a server that is asked to stop waits for its requests, and nobody is left to end one that hangs.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return in_child


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ending(status: int) -> str:
    """An exit status in words."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
