"""Only the engine's thread has helpers of OpenMP's: once there are more of them than cores, all sleep too soon."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_model import save_small_model

THREADS = 3
SCRIPT = """
import os, sys, threading
from orthrus_backend.assembly import build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.params import SamplingParams
from tests.engine.test_engine import send

def native():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

before = native()
settings = {"model": sys.argv[1], "kv_memory": "64MiB", "threads": sys.argv[2]}
service = build_service(EngineSettings.from_parameters(settings))
[inbox] = send(service.engine, service.intake.generate("a quick fox", SamplingParams(max_tokens=4)))
inbox.outcome()
print(native() - before)
service.close()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in Linux's /proc")
def test_only_the_engine_has_helpers(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(save_small_model(tmp_path)), str(THREADS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= THREADS - 1
