"""The README's lines for copying are run as they stand; only the ports are those of the test's server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import RunningServer

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("position", range(len(BLOCKS)))
def test_a_block_runs(server: RunningServer, position: int) -> None:
    language, code = BLOCKS[position]
    code = code.replace("localhost:8000", server.http).replace("localhost:8001", server.grpc)
    command = ["bash", "-ec", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if language == "bash":
        assert '"error"' not in done.stdout
        assert "text_output" in done.stdout
        assert '"shape":[2,576]' in done.stdout


def test_there_are_blocks_to_run() -> None:
    assert [language for language, _ in BLOCKS] == ["bash", "python", "python"]
