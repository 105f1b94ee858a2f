"""Runs perf_analyzer on `embed` (unary) and `generate` (streaming) and prints what it measured, per token too.

Starts an `orthrus serve` of its own unless it is given an address. The last line on stdout is one JSON document.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from client.examples.local_server import local_server
from loadtest.perf_analyzer.profile import Profile, read_export, write_inputs
from loadtest.perf_analyzer.tool import ToolError, command
from loadtest.summary import Times
from loadtest.workload import Vocabulary
from orthrus_backend.default_model import ModelFetchError, ensure_default_model

UNARY: tuple[str, ...] = ()
STREAM = ("--async", "--streaming")  # without them it cannot ask a decoupled model
TIMEOUT = 600  # seconds of one of its runs


def main(
    url: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="gRPC service of a server that runs.", show_default="its own")
    ] = "",
    requests: Annotated[int, typer.Option(min=1, help="For each model.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="Of a text or prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=2, help="Of a generation.")] = 32,
    output: Annotated[Path | None, typer.Option(help="Folder to leave its exports in.")] = None,
) -> None:
    """Measure the default model with NVIDIA's perf_analyzer."""
    try:
        vocabulary = Vocabulary.of_model(ensure_default_model())
        tool = command()
        with _folder(output) as folder, _server(url, tokens + output_tokens) as address:
            inputs = write_inputs(folder, vocabulary, tokens, output_tokens)
            common = [f"--concurrency-range={concurrency}", f"--request-count={requests}", "-u", address]
            measured = {
                model: _measured([*tool, "-m", model, *common, *how, f"--input-data={inputs[model]}"], folder, model)
                for model, how in (("embed", UNARY), ("generate", STREAM))
            }
    except (ToolError, ModelFetchError, RuntimeError, ValueError) as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
    Console(width=120).print(_table(measured))
    print(json.dumps({model: asdict(of_model) for model, of_model in measured.items()}))


def _measured(words: list[str], folder: Path, model: str) -> Profile:
    export = folder / f"{model}-export.json"
    words = [*words, "-i", "grpc", f"--profile-export-file={export}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    print(done.stdout, file=sys.stderr)
    if done.returncode:
        raise ToolError(
            f"perf_analyzer ended with status {done.returncode}: {done.stderr[-1000:]}{done.stdout[-1000:]}"
        )
    return read_export(export)


def _table(measured: dict[str, Profile]) -> Table:
    table = Table("", *measured, title="perf_analyzer")
    rows = {"to the first response": "first", "to the last response": "last", "between responses": "between"}
    table.add_row("requests/s", *(f"{p.requests / p.seconds:.2f}" for p in measured.values()))
    table.add_row("responses/s", *(f"{p.responses / p.seconds:.1f}" for p in measured.values()))
    for label, name in rows.items():
        for percentile in ("p50", "p99"):
            times: list[Times | None] = [getattr(of_model, name) for of_model in measured.values()]
            table.add_row(
                f"{label}, {percentile} \\[ms]", *(f"{getattr(t, percentile) * 1e3:.1f}" if t else "" for t in times)
            )
    return table


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="orthrus-perf-analyzer-") as folder:
        yield Path(folder)


@contextmanager
def _server(url: str, longest: int) -> Iterator[str]:
    if url:
        yield url
        return
    with local_server(f"--max-model-len={longest}") as endpoints:
        yield endpoints.grpc


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
