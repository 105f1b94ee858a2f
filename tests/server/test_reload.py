"""A plain tritonserver as in a container: models come and go, and a hook drains the engine before the stop."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.plain_server import Plain, plain_server
from tests.server.test_generate import post
from tests.server.test_shutdown import stream


@pytest.fixture
def plain(tmp_path: Path, small_model: Path) -> Iterator[Plain]:
    with plain_server(tmp_path / "log", {"model": str(small_model), "kv_memory": "4MiB"}, ["generate"]) as server:
        yield server


@pytest.mark.timeout(900)  # the engine is loaded six times
def test_load_and_unload_five_times_then_a_hook_and_the_end(plain: Plain) -> None:
    server, footprints = plain.server, []
    for _ in range(5):
        running_one = stream(server, 60)
        assert running_one.started.wait(30)
        plain.control("unload")  # Triton answers before it has unloaded, and lets what runs finish
        assert psutil.wait_procs(plain.triton.children(), timeout=30)[1] == []
        running_one.join(5)
        assert running_one.error is None
        assert running_one.result[-1]["finish_reason"] == b"length"
        footprints.append((plain.triton.num_threads(), plain.triton.memory_info().rss))
        assert post(server, {"text_input": "a cat"}).status_code in (400, 404)
        plain.control("load")
    assert footprints[-1][0] < footprints[1][0] + 3  # less than one thread for each time; gRPC has more or fewer
    assert footprints[-1][1] < footprints[1][1] * 1.05

    running_one = stream(server, 60)
    assert running_one.started.wait(30)
    subprocess.run(["sh", "-c", f"echo . >{plain.drain} && flock {plain.drain} true"], check=True, timeout=60)
    running_one.join(5)
    assert not running_one.is_alive()
    assert running_one.error is None
    assert "shutting down" in post(server, {"text_input": "a cat"}).text
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
