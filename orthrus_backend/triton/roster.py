"""The engines of one model in one server: each hears of an id to stop, and who looks sees which of them have died.

Every engine has a socket in a folder of its server's, under its process id. One that ends in order takes its socket
away; one that dies leaves it, and nobody answers there any more. Knows nothing of requests and engines but that.
"""

import fcntl
import logging
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

LONGEST_ID = 1 << 16  # bytes
_PREFIX = "orthrus-engines"
_PATIENCE_SECONDS = 1.0  # with an engine that does not read what it is told
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Presence:
    """Process ids of engines: those that are there, and those that ended without a word."""

    alive: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()


class Roster:
    """What an engine takes part in, and what others look at."""

    def __init__(self, model: str, server: int) -> None:
        """`model` is the name of the engines' model, `server` the process that has started them.

        Raises:
            OSError: there can be no folder for them that their user alone may enter.
        """
        _remove_unused()
        self._folder = _enter(_places() / f"{_PREFIX}-{os.geteuid()}-{server}-{model}")
        self._path = Path(f"/proc/self/fd/{self._folder}")  # short enough for an address, and always the same folder
        self._own: socket.socket | None = None

    def join(self, on_stop: Callable[[str], None]) -> None:
        """Take part as an engine, which is told by a thread the ids that others pass on. The dead are forgotten."""
        for pid in self.presence().dead:
            self._place(pid).unlink(missing_ok=True)
        self._own = _socket()
        self._own.bind(str(self._place(os.getpid())))
        threading.Thread(target=_listen, args=(self._own, on_stop), name="orthrus-roster", daemon=True).start()

    def presence(self) -> Presence:
        """Who is there now. Takes microseconds."""
        alive, dead = set(), set()
        for pid in self._listed():
            with _socket() as probe:
                try:
                    probe.connect(str(self._place(pid)))
                    alive.add(pid)
                except ConnectionRefusedError:
                    dead.add(pid)
                except FileNotFoundError:
                    pass  # it has left in this moment
        return Presence(frozenset(alive), frozenset(dead))

    def tell(self, request_id: str) -> None:
        """Have all other engines stop what carries this id, of at most LONGEST_ID bytes."""
        message = request_id.encode()
        assert 0 < len(message) <= LONGEST_ID
        for pid in self._listed() - {os.getpid()}:
            with _socket() as out, suppress(ConnectionRefusedError, FileNotFoundError):
                out.settimeout(_PATIENCE_SECONDS)
                out.connect(str(self._place(pid)))
                try:
                    out.send(message)
                except TimeoutError:
                    _log.warning("engine %d could not be told to stop request %r", pid, request_id[:100])

    def close(self) -> None:
        """Leave, in order."""
        if self._own is not None:
            self._place(os.getpid()).unlink(missing_ok=True)
            self._own.shutdown(socket.SHUT_RDWR)
            self._own = None
        os.close(self._folder)
        _remove_unused()

    def _listed(self) -> set[int]:
        return {int(socket_file.name) for socket_file in self._path.iterdir()}

    def _place(self, pid: int) -> Path:
        return self._path / str(pid)


def _listen(own: socket.socket, on_stop: Callable[[str], None]) -> None:
    with own:
        while message := own.recv(LONGEST_ID):
            on_stop(message.decode(errors="replace"))


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _places() -> Path:
    return Path(tempfile.gettempdir())


def _enter(path: Path) -> int:
    """Make the folder where it is missing, and hold it open and locked: it is in use as long as somebody does."""
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with suppress(FileNotFoundError), ExitStack() as kept:  # removed by another process before it was locked
            folder = _open(path)
            kept.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(folder), path.lstat()):
                kept.pop_all()
                return folder


def _open(path: Path) -> int:
    """Raises PermissionError where another user may have a hand in it."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(folder)
        raise PermissionError(f"{path} is to be a folder that its user alone may enter; another user may have made it")
    return folder


def _remove_unused() -> None:
    """Remove the folders of this user's servers that are gone: no process holds a lock on them."""
    for path in _places().glob(f"{_PREFIX}-{os.geteuid()}-*"):
        with suppress(OSError):  # it is in use, or gone by now
            folder = _open(path)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(folder)
