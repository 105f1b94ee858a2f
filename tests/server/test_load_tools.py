"""Load-test tools as they are called, against the real server: locust without and with its page, and perf_analyzer."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from loadtest.perf_analyzer import tool
from loadtest.targets.server_process import free_port
from tests.serving import RunningServer

PROJECT = Path(__file__).parent.parent.parent
SMALL = ("--input-tokens=16", "--output-tokens=4")
EVENTS = {
    *(("grpc", "embed"), ("grpc", "generate"), ("TTFT", "generate (grpc)"), ("inter-token", "generate (grpc)")),
    *(("http", "embed"), ("http", "generate"), ("TTFT", "generate (http)"), ("inter-token", "generate (http)")),
}


def locust(server: RunningServer, *options: str) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", f"--http={server.http}"]
    return [*command, f"--grpc={server.grpc}", *SMALL, *options]


def names_of(stats: list[dict[str, Any]], kind: str) -> set[tuple[str, str]]:
    return {(entry[kind], entry["name"]) for entry in stats} - {("", "Aggregated")}


def test_locust_headless(server: RunningServer) -> None:
    command = locust(server, "--headless", "--users=4", "--spawn-rate=4", "--run-time=6s", "--json")
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    stats = json.loads(done.stdout)
    assert names_of(stats, "method") == EVENTS
    assert not any(entry["num_failures"] for entry in stats)
    counts = {(entry["method"], entry["name"]): entry["num_requests"] for entry in stats}
    for protocol in ("grpc", "http"):
        finished = counts[protocol, "generate"]
        assert counts["TTFT", f"generate ({protocol})"] >= finished
        assert counts["inter-token", f"generate ({protocol})"] >= 3 * finished > 0


def test_locust_with_its_page(server: RunningServer) -> None:
    port = free_port()
    command = locust(server, f"--web-port={port}")
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.DEVNULL) as process:
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as page:
                _within(20, lambda: _reached(page))
                assert "locust" in page.get("/").text.lower()
                listening = [c for c in psutil.Process(process.pid).net_connections("inet") if c.status == "LISTEN"]
                assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}
                body = {"user_count": 2, "spawn_rate": 2, "embed_share": 1.0}
                assert page.post("/swarm", data=body).json()["success"]
                _within(20, lambda: _embeddings(page) > 0)
                assert names_of(page.get("/stats/requests").json()["stats"], "method") <= EVENTS
        finally:
            process.terminate()


@pytest.mark.skipif(not tool.is_here(), reason="perf_analyzer is not here: make perf-analyzer fetches it")
def test_perf_analyzer(server: RunningServer) -> None:
    options = ("--requests=4", "--concurrency=2", "--tokens=16", "--output-tokens=4", f"--url={server.grpc}")
    command = [sys.executable, "-m", "loadtest.perf_analyzer", *options]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert (measured["embed"]["requests"], measured["embed"]["responses"]) == (4, 4)
    assert (measured["generate"]["requests"], measured["generate"]["responses"]) == (4, 16)
    assert measured["generate"]["between"]["count"] == 12
    assert 0 < measured["generate"]["first"]["p50"] < measured["generate"]["last"]["p50"]


def _reached(page: httpx2.Client) -> bool:
    try:
        return page.get("/").status_code == 200
    except httpx2.TransportError:
        return False


def _embeddings(page: httpx2.Client) -> int:
    stats = page.get("/stats/requests").json()["stats"]
    return sum(entry["num_requests"] for entry in stats if entry["name"] == "embed")


def _within(seconds: float, holds: Any) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)
