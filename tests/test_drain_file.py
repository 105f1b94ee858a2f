"""The file that asks engines to finish."""

import subprocess
import sys
from pathlib import Path

from orthrus_backend.drain_file import DrainFile, all_released, ask


def test_it_is_released_when_the_last_engine_has_finished(tmp_path: Path) -> None:
    path = tmp_path / "drain"
    engines = [DrainFile(path), DrainFile(path)]
    assert not any(engine.asks for engine in engines)
    ask(path)
    assert all(engine.asks for engine in engines)
    engines[0].release()
    assert not all_released(path)
    engines[1].release()
    assert all_released(path)


def test_what_an_earlier_run_left_does_not_count_but_what_this_one_was_asked_does(tmp_path: Path) -> None:
    path = tmp_path / "drain"
    ask(path)
    first = DrainFile(path)
    assert not first.asks
    ask(path)
    assert DrainFile(path).asks  # an instance that starts while the others finish


def test_an_engine_that_dies_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "drain"
    code = "import os, sys; from orthrus_backend.drain_file import *; f = DrainFile(Path(sys.argv[1])); os._exit(1)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    ask(path)
    assert all_released(path)
