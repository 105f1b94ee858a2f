"""A pytest plugin that writes down what became of each test: passed, failed, or left out, and why.

A test that lacks a package, or the default model where it cannot be fetched, is left out and not failed: the machine is
as bare as it is. Does not know which tests run.
"""

import json
import re
from pathlib import Path

import pytest

OURS = ("orthrus_backend", "tests", "tools")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


class Records:
    """Of one run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed = 0
        self._failed: dict[str, str] = {}  # by test: the line that says why
        self._left_out: dict[str, str] = {}  # by test or file: what it needs

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report.nodeid, str(report.longrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._fail(report.nodeid, report.longreprtext)
        elif report.skipped:
            self._left_out[report.nodeid] = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
        elif report.when == "call":
            self._passed += 1

    def pytest_sessionfinish(self) -> None:
        content = {"passed": self._passed, "failed": self._failed, "left_out": self._left_out}
        self._file.write_text(json.dumps(content), encoding="utf-8")

    def _fail(self, name: str, text: str) -> None:
        missing = [module for module in _MISSING.findall(text) if module.partition(".")[0] not in OURS]
        if missing:
            self._left_out[name] = f"{missing[-1]} is not installed"
        elif "ModelFetchError" in text:
            self._left_out[name] = "the default model is not there"
        else:
            errors = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")]
            self._failed[name] = errors[0] if errors else text.strip().rpartition("\n")[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the records go."""
    parser.addoption("--records", type=Path, required=True, help="file for what became of each test, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to write them down."""
    config.pluginmanager.register(Records(config.getoption("--records")))
