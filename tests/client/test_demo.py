"""The demo as its user runs it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from orthrus_client.sample_corpus import sample_corpus

from tests.serving import left_over

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"
DEMO = [sys.executable, str(EXAMPLES / "demo.py")]


def test_the_corpus_is_sound() -> None:
    corpus = sample_corpus()
    ids = [document.id for document in corpus.documents]
    assert len(ids) == len(set(ids))
    assert len(corpus.questions) == 5
    assert all(len(question.needs) == 2 and question.needs <= set(ids) for question in corpus.questions)


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    command = [*DEMO, "--url", "127.0.0.1:1", "--metrics-url", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(number: signal.Signals) -> None:
    demo = psutil.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (children := demo.children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    demo.send_signal(number)
    assert demo.wait(60) == 130
    assert not left_over(children, within=10)
