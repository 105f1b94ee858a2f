"""A model process ends with the server that started it, whenever that was killed."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

_CHILD = """
import sys, time
from orthrus_backend.triton.parent import end_with_parent
time.sleep(float(sys.argv[1]))
end_with_parent()
time.sleep(60)
"""
_SERVER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("seconds", [0, 2], ids=["it-watches-already", "it-is-still-starting"])
def test_it_ends_when_its_server_is_killed(seconds: int) -> None:
    server = subprocess.Popen([sys.executable, "-c", _SERVER, _CHILD, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    child = psutil.Process(int(server.stdout.readline()))
    if not seconds:
        _wait_for(lambda: child.num_threads() > 1)
    server.kill()
    server.wait()
    server.stdout.close()
    assert Path(f"/proc/{child.pid}").exists()
    _wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_it_stays_while_its_server_does() -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, "0"])
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(3)
    child.kill()
    child.wait()


def _wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
