"""The README's lines for copying are run as they stand; only the ports are those of the test's server."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.serving import RunningGateway, running_gateway
from tests.serving import RunningServer

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def gateway(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """The gateway as the README starts it."""
    (options,) = re.findall(r"^\.venv/bin/orthrus-client gateway (.*)$", README, re.MULTILINE)
    log = tmp_path_factory.mktemp("gateway") / "stderr.log"
    with running_gateway(server.grpc, log, *options.split()) as running:
        yield running


@pytest.mark.parametrize("position", range(len(BLOCKS)))
def test_a_block_runs(server: RunningServer, gateway: RunningGateway, position: int) -> None:
    language, code = BLOCKS[position]
    code = code.replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)
    code = code.replace("http://localhost:8080", gateway.url)
    command = ["bash", "-ec", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if language == "bash":
        assert '"error"' not in done.stdout
        assert "text_output" in done.stdout
        assert '"shape":[2,576]' in done.stdout


def test_there_are_blocks_to_run() -> None:
    assert [language for language, _ in BLOCKS] == ["bash", *["python"] * 5]
