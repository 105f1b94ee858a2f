"""The demo as its user runs it, before the whole default model: only that one finds what it is asked about."""

import re
import subprocess
import sys
from pathlib import Path

from orthrus_client.sample_corpus import sample_corpus

from tests.serving import RunningServer

DEMO = Path(__file__).parents[2] / "client" / "examples" / "demo.py"


def test_the_demo_answers_every_question_in_three_rounds(server: RunningServer) -> None:
    command = [sys.executable, str(DEMO), "--url", server.grpc, "--metrics-url", server.metrics]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for question in sample_corpus().questions:
        for number in (1, 2, 3):
            assert f"round {number}  {question.text}" in done.stdout
    assert "45 embed, 15 generate" in done.stdout
    right_first = re.search(r"came first in (\d+) of 15 rounds", done.stdout)
    assert right_first
    assert int(right_first[1]) >= 12, done.stdout  # 13 in float32 and in bfloat16
    mixed = re.search(r"(\d+) of the \d+ steps with embeddings", done.stdout)
    assert mixed
    assert int(mixed[1]) > 0
