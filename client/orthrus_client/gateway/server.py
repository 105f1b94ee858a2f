"""Runs the application: listens, says where, and ends in order."""

import asyncio
import signal
import socket
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from orthrus_client.gateway.app import Settings, make_app


class _Server(uvicorn.Server):
    """Tells when it accepts connections, and when it is about to end."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], closing: asyncio.Event) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._closing = closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)


def run(
    settings: Settings, host: str, port: int, log_level: str, drain_timeout: int, on_ready: Callable[[str], None]
) -> bool:
    """Serve until SIGTERM or Ctrl-C, then give running requests `drain_timeout` seconds.

    Args:
        port: 0 for a free one.
        on_ready: told host:port when connections are accepted.

    Returns:
        Whether it was ever ready.

    Raises:
        ValueError: there can be no listening at this address.
    """
    closing = asyncio.Event()
    config = uvicorn.Config(
        make_app(settings, closing),
        host=host,
        port=port,
        log_level=log_level,
        log_config=_log_config(),
        timeout_graceful_shutdown=drain_timeout,
        server_header=False,
    )
    listening = _listen(host, port)
    server = _Server(config, lambda: on_ready(_address(listening)), closing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal anew at its end, which is no failure
    server.run([listening])
    return server.started


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ValueError(f"--port {port}: cannot listen on {host}:{port}: {error.strerror}") from error


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _log_config() -> dict[str, Any]:
    """uvicorn's own, but with stdout left to results."""
    config = deepcopy(LOGGING_CONFIG)
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return config
