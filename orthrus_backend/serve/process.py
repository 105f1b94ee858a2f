"""One tritonserver as a child process: started, awaited, watched, stopped. Knows nothing of models or parameters.

The child and its stub processes never outlive this process: they are a process group of their own, which is ended with
the child, and the kernel ends the child should this process die without a word.
"""

import ctypes
import json
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
LINGER_SECONDS = 2.0  # for the last answers to reach their clients
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
        """What runs is to finish, within `grace` seconds: see `drain`. Asked again, the server ends at once."""
        if self.stopping:
            self._kill_group()
            return
        self._stop_by = time.monotonic() + grace

    def watch(self) -> None:
        """Return when `stop` was called.

        Raises:
            ServerError: the server ended by itself, or one of its stub processes died.
        """
        while not self.stopping:
            self._check_alive()
            time.sleep(POLL_SECONDS)

    def drain(self, finished: Callable[[], bool]) -> None:
        """Return when the server may be closed, after `stop`.

        `finished` says whether all requests are answered. Only then is tritonserver told to stop: it takes no new
        connections then and waits until open ones are closed, used or not, for which it gets a moment.

        Raises:
            ServerError: requests had to be cut off, or it died.
        """
        assert self._stop_by is not None
        while not finished():
            if time.monotonic() > self._stop_by:
                raise ServerError("the engine did not finish in time; what was still running was cut off")
            time.sleep(POLL_SECONDS)
        if self._child.poll() is None and not all(map(_lives, self._stubs)):
            raise ServerError("a model process died; what was still running was cut off")
        self._child.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(LINGER_SECONDS)
        if self._child.returncode:
            raise ServerError(f"tritonserver did not stop cleanly ({_ending(self._child.returncode)})")

    def close(self) -> None:
        """End whatever is left of the server and its stubs."""
        if not self._closed:
            self._kill_group()
            self._child.wait()
            self._closed = True

    def _check_alive(self) -> None:
        if self._child.poll() is not None:
            raise ServerError(f"tritonserver ended unasked ({_ending(self._child.returncode)})")
        if not all(map(_lives, self._stubs)):
            # Triton does not restart a stub, and 2.51 goes on saying that it is ready.
            raise ServerError("a model process of tritonserver died, so it cannot answer any more")

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
