"""The temporary folder of one server, and what servers that were killed have left of theirs.

A locked file in the folder says that its server lives. The kernel drops the lock with the process, so that a folder
whose file can be locked is nobody's, whatever its process number means by now.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "orthrus-"
SHARED_MEMORY = Path("/dev/shm")  # regions are named after their server's folder
_LOCK = "in-use"


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder that is removed in the end, with all shared memory named after it."""
    parent = Path(tempfile.gettempdir())
    _remove_stale(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    try:
        with (folder / f"{_LOCK}.new").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f"{_LOCK}.new").rename(folder / _LOCK)  # not to be seen before it is locked
            yield folder
    finally:
        _remove(folder)


def _remove_stale(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as file:  # another user's, in use, or gone by now
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.stat().st_uid == os.getuid():
                _remove(lock.parent)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for region in SHARED_MEMORY.glob(f"{folder.name}-*"):
        region.unlink(missing_ok=True)
