"""A server as a child process: started with its output in a file, awaited, and ended with all its children."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import aiohttp
import psutil

from loadtest.targets.target import TargetError

POLL_SECONDS = 0.25
STOP_SECONDS = 30.0
SHOWN = 3000  # characters of a log that an error repeats


class ServerProcess:
    """One server and what it starts."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        announces: bool = True,
    ) -> None:
        """Starts it; `variables` are added to its environment, its stderr goes to `log`.

        So does its stdout, unless it `announces` itself there in one line.
        """
        self._log = log
        with log.open("ab") as errors:
            # A session of its own: Ctrl-C reaches us alone, and we stop it in order.
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE if announces else errors,
                stderr=errors,
                text=True,
                env=os.environ | dict(variables),
                start_new_session=True,
            )

    async def first_line(self, timeout: float) -> str:
        """The first line that it writes to stdout. Raises `TargetError` if it ends first or takes too long."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), timeout)
        except TimeoutError:
            raise TargetError(f"nothing was ready after {timeout:g} s{self._said()}") from None
        if not line:
            raise TargetError(f"the server ended with status {self._process.wait()}{self._said()}")
        return line

    async def answers(self, url: str, timeout: float) -> None:
        """Wait until `url` answers with status 200. Raises `TargetError` if it ends first or takes too long."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(timeout):
            while True:
                if self._process.poll() is not None:
                    raise TargetError(f"the server ended with status {self._process.returncode}{self._said()}")
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass  # it does not listen yet
                await asyncio.sleep(POLL_SECONDS)

    def processes(self) -> list[psutil.Process]:
        """It and all that it started."""
        try:
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    async def stop(self) -> None:
        """Ask it to end, and end it if it does not."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        family = self.processes()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for process in psutil.wait_procs(family, timeout=5)[1]:  # children that outlived it
            process.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _said(self) -> str:
        return f"; the end of {self._log}:\n{self._log.read_text(errors='replace')[-SHOWN:]}"


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
