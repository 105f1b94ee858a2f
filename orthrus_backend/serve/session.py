"""One run of `orthrus serve`, from the first folder to the last: the place where the parts of this package meet."""

import math
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from orthrus_backend import drain_file
from orthrus_backend.serve.layout import Layout, lay_out
from orthrus_backend.serve.options import has_gpu
from orthrus_backend.serve.ports import Endpoints
from orthrus_backend.serve.process import ServerError, TritonProcess
from orthrus_backend.serve.server_log import ServerLog
from orthrus_backend.serve.triton_binary import find_triton
from orthrus_backend.serve.workspace import workspace

LogLevel = Literal["error", "warning", "info", "debug"]
STOP_SECONDS = 5.0  # for a step that is running and for the last answers, on top of the time that requests get
KEEPALIVE_MILLISECONDS = {"time": 30_000, "timeout": 10_000}  # until a gRPC client that has stopped counts as gone
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # bars are for a terminal, and the server writes into a pipe
CALLERS_TRACES = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0")  # rate 0: only where the caller traces
# Triton's services that change the server or reach into its memory. Clients of Orthrus need none of them.
CLOSED_SERVICES = "shared-memory,model-repository,trace,logging"


@dataclass(frozen=True, slots=True)
class Session:
    """What to serve and how."""

    parameters: Mapping[str, str]  # of the model `orthrus`, as in its config.pbtxt
    instances: int
    endpoints: Endpoints
    drain_timeout: float  # seconds
    start_timeout: float  # seconds
    log_level: LogLevel

    def run(self, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> bool:
        """Serve until SIGTERM, SIGINT or SIGHUP; False if that came before the server was ready. Main thread only.

        Calls `on_ready` when all models are loaded, and `on_stop` when what still runs gets its time to finish.

        Raises:
            ServerError: the server did not get ready, died, or did not stop cleanly.
            RuntimeError: there is no tritonserver.
        """
        triton = find_triton()
        gpu = self.parameters.get("device") != "cpu" and has_gpu()
        with workspace() as folder:
            drain = folder / "drain"
            layout = lay_out(folder, triton, {**self.parameters, "drain_file": str(drain)}, self.instances)
            command = [str(triton.server), *self._arguments(layout, gpu)]
            command.append(f"--backend-config=python,shm-region-prefix-name={folder.name}-")
            with _stoppable() as stop_with:
                environment = triton.environment(QUIET | os.environ | {"TMPDIR": str(folder)})  # removed with it
                server = TritonProcess(command, environment, self.endpoints, folder.name)
                log = ServerLog(server.output, gpu=gpu, everything=self.log_level == "debug")
                try:
                    stop_with(lambda: server.stop(self.drain_timeout + STOP_SECONDS))
                    with _elapsed("Loading"):
                        server.wait_until_ready(self.start_timeout)
                    if server.stopping:
                        return False
                    on_ready()
                    server.watch()
                    on_stop()
                    drain_file.ask(drain)
                    server.drain(lambda: drain_file.all_released(drain))
                    return True
                except ServerError as error:
                    server.close()
                    raise ServerError("\n".join(log.reasons()) or str(error)) from None
                finally:
                    server.close()

    def _arguments(self, layout: Layout, gpu: bool) -> list[str]:
        arguments: dict[str, object] = {
            "model-repository": layout.models,
            "backend-directory": layout.backends,
            "exit-timeout-secs": math.ceil(self.drain_timeout) + 10,  # later than this process ends it
            "log-warning": self.log_level != "error",
            "log-info": self.log_level in ("info", "debug"),
            "log-verbose": int(self.log_level == "debug"),
        }
        if not gpu:
            arguments |= {"pinned-memory-pool-byte-size": 0, "allow-gpu-metrics": False}
        arguments |= {f"grpc-keepalive-{name}": value for name, value in KEEPALIVE_MILLISECONDS.items()}
        for protocol, address in self.endpoints.as_dict().items():
            host, _, port = address.rpartition(":")
            arguments |= {f"{protocol}-address": host, f"{protocol}-port": port}
        # Triton opens a restricted service to those who send a key; this one is told to nobody.
        closed = f"{CLOSED_SERVICES}:orthrus-key={secrets.token_urlsafe()}"
        arguments |= {"http-restricted-api": closed, "grpc-restricted-protocol": closed}
        # The configurations are complete: without this each model is imported twice.
        flags = ["--disable-auto-complete-config"]
        if self.parameters.get("traces") == "True":
            flags += [f"--trace-config={setting}" for setting in CALLERS_TRACES]
        return [*flags, *(f"--{name}={_written(value)}" for name, value in arguments.items())]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _stoppable() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Catch the signals that ask for an end; the value sets what they do. One that came earlier acts then."""
    actions: list[Callable[[], None]] = []
    early: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if actions:
            actions[-1]()
        else:
            early.append(number)

    def stop_with(action: Callable[[], None]) -> None:
        actions.append(action)
        if early:
            action()

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop_with
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _elapsed(label: str) -> Iterator[None]:
    """Show on a terminal that something takes its time, and how long it has."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(label, total=None)
        yield
