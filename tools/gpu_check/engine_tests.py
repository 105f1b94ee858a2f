"""Runs the engine's own tests on this machine, as far as they can run with what is installed.

Nothing is downloaded. Tests that make a whole engine take the GPU, if that is the device; those of single parts are on
the CPU whatever the device. Knows nothing of what the tests are.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orthrus_backend.model import resolve_device

ROOT = Path(__file__).resolve().parent.parent.parent
ALL = ("tests/engine",)
A_FEW = ("tests/engine/test_params.py",)
# No conftest.py and no plugins but those named here: they need packages that a bare machine may lack.
_OPTIONS = (
    "--override-ini=addopts=",
    "--import-mode=importlib",
    "--noconftest",
    "--continue-on-collection-errors",
    "-q",
)
_FIXTURES = "tests.reference"  # a plugin, too
_VARIABLES = {
    "PIP_NO_INDEX": "1",  # no downloads ...
    "HF_HUB_OFFLINE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "OMP_NUM_THREADS": "1",  # ... and no threads that wait for each other over tiny tensors
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the tests. `failed` and `left_out` have a line each for what has one reason in common."""

    passed: int
    failed: Mapping[str, Sequence[str]]  # by reason: tests
    left_out: Mapping[str, Sequence[str]]
    fault: str = ""


def run(device_name: str, tiny: bool) -> Iterator[Outcomes]:
    """Run them, or a few if `tiny`; pytest's own lines go where this process' stdout goes."""
    device = resolve_device(device_name)
    if importlib.util.find_spec("pytest") is None:
        yield Outcomes(0, {}, {"pytest is not installed": list(ALL)})
    elif tiny:
        yield run_paths(A_FEW, (), device.type)
    else:
        yield run_paths(ALL, ("-p", _FIXTURES), device.type)


def run_paths(paths: Sequence[str], options: Sequence[str], device_type: str) -> Outcomes:
    """Run the tests below these paths; on the CPU they see no GPU."""
    variables = os.environ | _VARIABLES | ({"CUDA_VISIBLE_DEVICES": ""} if device_type == "cpu" else {})
    if importlib.util.find_spec("pytest_timeout"):
        options = ("-p", "pytest_timeout", *options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.json"
        plugin = ("-p", "tools.gpu_check.pytest_records", f"--records={file}", "-p", "no:cacheprovider")
        command = [sys.executable, "-m", "pytest", *_OPTIONS, *plugin, *options, *paths]
        status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
        if not file.exists():
            return Outcomes(0, {}, {}, f"pytest ended with status {status}")
        records = json.loads(file.read_text(encoding="utf-8"))
    failed, left_out = _by_reason(records["failed"]), _by_reason(records["left_out"])
    fault = ""
    if failed:
        first = next(iter(records["failed"].items()))
        fault = f"{len(records['failed'])} tests failed, the first is {first[0]}: {first[1]}"
    elif not records["passed"]:
        fault = "no test ran"
    return Outcomes(records["passed"], failed, left_out, fault)


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        found[reason].append(name)
    return dict(found)
