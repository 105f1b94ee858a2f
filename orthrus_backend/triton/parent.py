"""Ends a model process when the tritonserver that started it is gone. Knows nothing of what the process does.

A stub that is busy does not notice by itself. The kernel's own signal for this goes by the starting thread, which in
tritonserver ends long before the process.
"""

import os
import threading
import time
from pathlib import Path

_POLL_SECONDS = 1.0
_ADOPTER = 1  # the process that gets those whose parent is gone


def end_with_parent() -> None:
    """Watch the parent process from a thread; when it is no longer there, nobody can be answered."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and not (parent == _ADOPTER and _is_adopted()):
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orthrus-parent", daemon=True).start()


def _is_adopted() -> bool:
    """Whether the parent was gone before anyone looked: in a container, process 1 may be the server itself.

    Triton gives a stub the server's process id among its arguments.
    """
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    named = b"%d" % _ADOPTER in arguments
    return not named and Path(f"/proc/{_ADOPTER}/comm").read_bytes().strip() != b"tritonserver"
