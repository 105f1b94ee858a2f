"""The command line `python -m loadtest`. Progress goes to stderr; the last line on stdout is one JSON document."""

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from typer.core import TyperCommand

from loadtest import vllm_environment
from loadtest.driver import BrokenTargetError
from loadtest.markdown import markdown, read_all, with_numbers
from loadtest.plan import Plan
from loadtest.scenario import Scenario, names, read_scenario
from loadtest.targets.catalogue import TARGETS, read_target
from loadtest.targets.target import Settings, TargetError
from orthrus_backend.default_model import ModelFetchError, ensure_default_model
from orthrus_backend.validation import one_line

LEAST_ROUNDS = 3
BLOCK = 16  # tokens; limits are rounded up to it

Dtype = Literal["bfloat16", "float32", "float16"]
_Scenarios = Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Names (see `list`) or TOML files.")]
_Model = Annotated[
    Path | None,
    typer.Option(help="A Hugging Face folder.", show_default="SmolLM2-135M-Instruct", exists=True, file_okay=False),
]
_Dtype = Annotated[Dtype, typer.Option(help="Number format, for all targets.")]
_Duration = Annotated[float | None, typer.Option(help="Seconds of each phase, instead of the scenario's.")]
_Scale = Annotated[float, typer.Option(help="Factor for all clients, requests, tokens and rates.")]
_Seed = Annotated[int, typer.Option(min=0, help="What the requests are drawn from.")]
_MaxRunning = Annotated[int, typer.Option(min=1, help="Generations that a target runs at once.")]
_KvMemory = Annotated[str, typer.Option(metavar="SIZE", help="Memory for keys and values of generations.")]
_Output = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="loadtest-results/TIME")]

app = typer.Typer(
    name="loadtest",
    help="Measures Orthrus and what it is compared with, under the same load.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class _Lists(TyperCommand):
    """Takes `--targets A B` for `--targets A --targets B`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread, inside = [], False
        for word in args:
            if word.startswith("-"):
                inside = word == "--targets"
                spread += [] if inside else [word]
            else:
                spread += ["--targets", word] if inside else [word]
        return super().parse_args(ctx, spread)


@app.command()
def run(
    scenarios: _Scenarios,
    target: Annotated[
        str, typer.Option(metavar="TARGET", help="A name (see `list`), with options of its own: name:key=value,...")
    ],
    model: _Model = None,
    dtype: _Dtype = "bfloat16",
    duration: _Duration = None,
    scale: _Scale = 1.0,
    seed: _Seed = 0,
    max_running: _MaxRunning = 64,
    kv_memory: _KvMemory = "2GiB",
    output: _Output = None,
) -> None:
    """Measure one target once."""
    with _faults():
        read = [_adapted(name, duration, scale) for name in scenarios]
        settings = _settings(read, model, dtype, max_running, kv_memory, output)
        Plan(read, [read_target(target)], settings, 1, seed, None, settings.logs).run()


@app.command(cls=_Lists)
def compare(
    scenarios: _Scenarios,
    targets: Annotated[list[str], typer.Option(metavar="TARGET...", help="Two or more, as for `run`.")],
    baseline: Annotated[
        str | None,
        typer.Option(help="What ratios refer to.", show_default="the fastest but for the first target"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=LEAST_ROUNDS, help="Of all targets, one after the other.")] = LEAST_ROUNDS,
    model: _Model = None,
    dtype: _Dtype = "bfloat16",
    duration: _Duration = None,
    scale: _Scale = 1.0,
    seed: _Seed = 0,
    max_running: _MaxRunning = 64,
    kv_memory: _KvMemory = "2GiB",
    output: _Output = None,
) -> None:
    """Measure several targets in interleaved rounds: A B C, A B C, A B C.

    Each round starts every target anew and runs all scenarios on it; only one target runs at a time.
    """
    with _faults():
        if len(set(targets)) != len(targets) or len(targets) < 2:
            raise ValueError(f"--targets {' '.join(targets)}: two or more different ones are needed")
        if baseline is not None and baseline not in targets:
            raise ValueError(f"--baseline {baseline!r} is not among the targets {', '.join(targets)}")
        read = [_adapted(name, duration, scale) for name in scenarios]
        settings = _settings(read, model, dtype, max_running, kv_memory, output)
        Plan(read, [read_target(name) for name in targets], settings, rounds, seed, baseline, settings.logs).run()


@app.command()
def install(what: Annotated[Literal["vllm"], typer.Argument()]) -> None:
    """Make the environment that the vllm targets need; pip's own settings apply."""
    try:
        typer.echo(vllm_environment.install())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        _fail(f"{what} could not be installed: {error}")


@app.command()
def readme(
    results: Annotated[Path, typer.Argument(help="Folder of results.json files.", exists=True, file_okay=False)],
    file: Annotated[Path, typer.Option(help="What gets the table, between its marks.")] = Path("README.md"),
) -> None:
    """Write the table of numbers into the README, from results."""
    with _faults():
        numbers = markdown(read_all(results))
        file.write_text(with_numbers(file.read_text(encoding="utf-8"), numbers), encoding="utf-8")


@app.command("list")
def list_all() -> None:
    """The scenarios and the targets that there are."""
    for name in names():
        typer.echo(f"{name:<14} {read_scenario(name).description}")
    typer.echo(f"\ntargets: {', '.join(TARGETS)}")


@contextmanager
def _faults() -> Iterator[None]:
    """Say what goes wrong in one line; a traceback is left to faults of this program itself."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, ends what was started
    try:
        yield
    except ValueError as error:
        _fail(str(error), status=2)
    except (TargetError, BrokenTargetError, ModelFetchError) as error:
        _fail(str(error))
    finally:
        signal.signal(signal.SIGTERM, before)


def _adapted(name: str, duration: float | None, scale: float) -> Scenario:
    scenario = read_scenario(name).scaled(scale)
    return scenario if duration is None else scenario.lasting(duration)


def _settings(
    scenarios: Sequence[Scenario],
    model: Path | None,
    dtype: Dtype,
    max_running: int,
    kv_memory: str,
    output: Path | None,
) -> Settings:
    """What all targets have in common; makes the output folder. Raises `ValueError`, `ModelFetchError`."""
    try:
        memory = TypeAdapter(ByteSize).validate_python(kv_memory)
    except ValidationError as error:
        raise ValueError(f"--kv-memory {one_line(error)}") from error
    folder = output or Path("loadtest-results") / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    longest = max(scenario.longest for scenario in scenarios)
    return Settings(
        model=(model or ensure_default_model()).resolve(),
        dtype=dtype,
        max_model_len=-(-longest // BLOCK) * BLOCK,
        max_running=max_running,
        kv_memory=int(memory),
        logs=folder,
    )


def _fail(message: str, status: int = 1) -> NoReturn:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
