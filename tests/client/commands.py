"""Runs commands of `orthrus-client` in tests."""

import sys

from orthrus_client.cli.app import app
from typer.testing import CliRunner, Result

from tests.serving import RunningServer

COMMAND = [sys.executable, "-m", "orthrus_client"]
GREEDY = ["--max-tokens", "12", "--temperature", "0"]


def run(server: RunningServer, *arguments: object, stdin: str | None = None) -> Result:
    """A command, in this process."""
    environment = {"ORTHRUS_URL": server.grpc, "COLUMNS": "200"}
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=environment)


def answered(result: Result) -> str:
    """What a command wrote that went well."""
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(result: Result, status: int = 1) -> str:
    """The one line that a command wrote that went wrong."""
    assert result.exit_code == status, result.output
    assert result.stderr.startswith("error: ") or status == 2
    assert result.stderr.count("\n") == 1 or status == 2
    return result.stderr
