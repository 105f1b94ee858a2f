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
from queue import Empty, Full, Queue, SimpleQueue

LONGEST_ID = 1 << 16  # bytes
_PREFIX = "orthrus-engines"
_MOST_UNTOLD = 1000  # ids that wait to be passed on
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
        self._folder = _enter(_places() / folder_name(model, server))
        self._path = Path(f"/proc/self/fd/{self._folder}")  # short enough for an address, and always the same folder
        self._own: socket.socket | None = None
        self._known: frozenset[int] = frozenset()  # who was there when last looked at
        self._outbox: Queue[str | None] = Queue(_MOST_UNTOLD)
        self._teller = threading.Thread(target=self._pass_on, name="orthrus-roster-tell", daemon=True)
        self._teller.start()

    def join(self, on_stop: Callable[[str], None]) -> None:
        """Take part as an engine, which is told by a thread the ids that others pass on. The dead are forgotten."""
        for pid in self.presence().dead:
            self._place(pid).unlink(missing_ok=True)
        self._own = _socket()
        self._own.bind(str(self._place(os.getpid())))
        heard: SimpleQueue[str] = SimpleQueue()  # Linux keeps few unread, and `on_stop` may take its time
        threading.Thread(target=_listen, args=(self._own, heard), name="orthrus-roster", daemon=True).start()
        threading.Thread(target=_obey, args=(heard, on_stop), name="orthrus-roster-stop", daemon=True).start()

    def presence(self) -> Presence:
        """Who is there now. Takes microseconds.

        Where somebody has removed the folder, those whose processes have ended since are dead, however they ended.
        """
        if os.fstat(self._folder).st_nlink == 0:
            running = frozenset(pid for pid in self._known if Path(f"/proc/{pid}").exists())
            return Presence(running, self._known - running)
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
        self._known = frozenset(alive)
        return Presence(self._known, frozenset(dead))

    def tell(self, request_id: str) -> None:
        """Have all other engines stop what carries this id, of at most LONGEST_ID bytes. A thread does it."""
        assert 0 < len(request_id.encode()) <= LONGEST_ID
        try:
            self._outbox.put_nowait(request_id)
        except Full:
            _log.warning("too much is to be passed on: no other engine is told to stop request %r", request_id[:100])

    def close(self) -> None:
        """Leave, in order. What was not passed on by then is not."""
        with suppress(Empty):
            while True:
                self._outbox.get_nowait()
        self._outbox.put(None)
        self._teller.join()
        if self._own is not None:
            self._place(os.getpid()).unlink(missing_ok=True)
            self._own.shutdown(socket.SHUT_RDWR)
            self._own = None
        os.close(self._folder)
        _remove_unused()

    def _pass_on(self) -> None:
        while (request_id := self._outbox.get()) is not None:
            for pid in self._listed() - {os.getpid()}:
                with _socket() as out, suppress(ConnectionRefusedError, FileNotFoundError):
                    out.settimeout(_PATIENCE_SECONDS)
                    out.connect(str(self._place(pid)))
                    try:
                        out.send(request_id.encode())
                    except TimeoutError:
                        _log.warning("engine %d could not be told to stop request %r", pid, request_id[:100])

    def _listed(self) -> set[int]:
        return {int(socket_file.name) for socket_file in self._path.iterdir() if socket_file.name.isdecimal()}

    def _place(self, pid: int) -> Path:
        return self._path / str(pid)


def folder_name(model: str, server: int) -> str:
    """Where the engines of a server meet: containers that share a folder for temporary files each have a process 1."""
    return f"{_PREFIX}-{os.geteuid()}-{Path('/proc/self/ns/pid').stat().st_ino}-{server}-{model}"


def _listen(own: socket.socket, heard: SimpleQueue[str]) -> None:
    with own:
        while message := own.recv(LONGEST_ID):
            heard.put(message.decode(errors="replace"))


def _obey(heard: SimpleQueue[str], on_stop: Callable[[str], None]) -> None:
    while True:
        on_stop(heard.get())


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
