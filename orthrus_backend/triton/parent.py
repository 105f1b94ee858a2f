"""Ends a model process when the tritonserver that started it is gone. Knows nothing of what the process does.

A stub that is busy does not notice by itself. The kernel's own signal for this goes by the starting thread, which in
tritonserver ends long before the process.
"""

import os
import threading
import time

_POLL_SECONDS = 1.0


def end_with_parent() -> None:
    """Watch the parent process from a thread; when it is no longer there, nobody can be answered."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orthrus-parent", daemon=True).start()
