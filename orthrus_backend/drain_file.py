"""The file by which whoever stops the server asks the engines to finish, and learns that they have.

Something written to it is the request. Each engine holds a shared lock on it until it has answered everything, and the
kernel drops the lock of one that dies: whoever gets an exclusive lock knows that all are done. Triton itself tells a
model nothing of a stop before the last request has ended.
"""

import fcntl
import os
from pathlib import Path


class DrainFile:
    """An engine's side of the file. What an earlier run has left in it does not count."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be written."""
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(0)
        except BlockingIOError:
            pass  # another instance of this run was first
        fcntl.flock(self._file, fcntl.LOCK_SH)

    @property
    def asks(self) -> bool:
        """Whether the engine is asked to finish."""
        return os.fstat(self._file.fileno()).st_size > 0

    def release(self) -> None:
        """The engine has answered everything."""
        self._file.close()


def ask(path: Path) -> None:
    """Ask all engines that watch the file to finish."""
    path.write_text("drain\n", encoding="utf-8")


def all_released(path: Path) -> bool:
    """Whether no engine holds the file any more."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
