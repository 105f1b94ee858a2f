"""The command line: results on stdout, files in the folder, faults in one line.

A process of its own shows that nothing else gets onto stdout; what else is asked is asked in this one.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from loadtest import vllm_environment
from loadtest.__main__ import app
from loadtest.markdown import BEGIN, END


def loadtest(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def small(model: Path, output: Path, seconds: float) -> list[str]:
    options = {"model": model, "output": output, "duration": seconds, "scale": 0.15, "dtype": "float32"}
    return [f"--{name}={value}" for name, value in {**options, "kv-memory": "16MiB"}.items()]


def document(stdout: str, output: Path) -> Any:
    last = stdout.splitlines()[-1]
    assert (output / "results.json").read_text().strip() == last
    return json.loads(last)


def test_run_through_triton(model: Path, tmp_path: Path) -> None:
    arguments = ["run", "mix-50-50", "phases", "--target", "orthrus:policy=fcfs", *small(model, tmp_path, 3)]
    command = [sys.executable, "-m", "loadtest", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = document(done.stdout, tmp_path)
    assert {"cpu", "cores", "memory_bytes", "packages", "commit"} <= result["machine"].keys()
    mix, phases = result["scenarios"]
    (measured,) = mix["targets"]["orthrus:policy=fcfs"]["rounds"]
    assert measured["all"]["requests"] > 0
    assert measured["all"]["embed"]["failed"] == measured["all"]["generate"]["failed"] == 0
    for name in ("e2e", "ttft", "tpot", "inter_token"):
        assert measured["all"]["generate"][name]["p50"] > 0
    assert measured["usage"]["peak_pss"] > 50 << 20
    assert measured["usage"]["cpu_seconds"] > 0
    assert len(phases["targets"]["orthrus:policy=fcfs"]["rounds"][0]["phases"]) == 3
    pictures = {"mix-50-50", "phases", "phases-phases"}
    for form in ("png", "svg"):
        assert {file.stem for file in tmp_path.glob(f"*.{form}")} == pictures
    assert (tmp_path / "phases.png").read_bytes().startswith(b"\x89PNG")
    assert "between tokens p99" in done.stdout


def test_compare_in_process(model: Path, tmp_path: Path) -> None:
    targets = ("orthrus-engine", "orthrus-engine:policy=fcfs")
    done = loadtest("compare", "mix-90-10", "--targets", *targets, *small(model, tmp_path, 0.7))
    assert done.exit_code == 0, done.stderr
    (result,) = document(done.stdout, tmp_path)["scenarios"]
    assert result["baseline"] == targets[1]
    assert [len(result["targets"][target]["rounds"]) for target in targets] == [3, 3]
    ratio = result["targets"][targets[0]]["ratio"]["requests"]
    assert 0 < ratio["least"] <= ratio["median"] <= ratio["most"]
    starts = [line for line in done.stderr.splitlines() if line.endswith("starting")]
    assert starts == [f"round {n} of 3: {target}: starting" for n in (1, 2, 3) for target in targets]
    assert "x: ratio to orthrus-engine:policy=fcfs" in done.stdout

    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}{END}after\n")
    assert loadtest("readme", tmp_path, "--file", readme).exit_code == 0
    lines = readme.read_text().splitlines()
    assert "|  |  | `orthrus-engine` | `orthrus-engine:policy=fcfs` |" in lines
    median = result["targets"][targets[0]]["spread"]["requests"]["median"]
    (row,) = [line for line in lines if line.startswith("| `mix-90-10` | all [req/s] | ")]
    assert float(row.split()[6]) == pytest.approx(median, rel=0.01)
    assert f"{ratio['median']:.2f}x" in row
    assert (lines[0], lines[-1]) == ("before", "after")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "mix-1-1", "--target", "orthrus"], 2, "unknown scenario 'mix-1-1'"),
        (["run", "burst", "--target", "triton"], 2, "unknown target 'triton'"),
        (["run", "burst", "--target", "orthrus", "--scale", "0"], 2, "scale 0 is not above 0"),
        (["run", "burst", "--target", "orthrus-engine:policy=mine"], 2, "policy"),
        (["compare", "burst", "--targets", "orthrus", "orthrus"], 2, "two or more different ones"),
        (["compare", "burst", "--targets", "orthrus", "vllm-pinned", "--baseline", "x"], 2, "'x' is not among"),
    ],
)
def test_faults_are_told_in_one_line(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    done = loadtest(*arguments, "--output", tmp_path)
    assert done.exit_code == status
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_a_target_that_is_missing_or_cannot_do_it_is_refused_not_skipped(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path / "cache"))
    targets = ("orthrus-engine", "vllm-embed-only")
    arguments = ["compare", "generate-only", "--targets", *targets, *small(model, tmp_path, 0.5)]
    done = loadtest(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "python -m loadtest install vllm" in done.stderr
    vllm_environment.folder().mkdir(parents=True)
    (vllm_environment.folder() / "complete").touch()  # as if it were installed; nothing of it is started
    done = loadtest(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "vllm-embed-only does not generate, which scenario generate-only asks for" in done.stderr
    assert "starting" not in done.stderr
