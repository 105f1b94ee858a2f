"""The command line `orthrus`: which commands there are."""

from importlib.metadata import version as package_version
from typing import Annotated

import typer

from orthrus_backend.default_model import ModelFetchError, ensure_default_model
from orthrus_backend.serve.command import fail, serve

app = typer.Typer(
    name="orthrus",
    help="Embeddings and generation from one backbone, in one batch, behind NVIDIA Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orthrus {package_version('orthrus-backend')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Embeddings and generation from one backbone, in one batch, behind NVIDIA Triton."""


@app.command("fetch-model")
def fetch_model() -> None:
    """Fetch and convert the default model if it is not there yet; print its folder.

    It is kept below ORTHRUS_CACHE, or in your cache folder when that is not set.
    """
    try:
        typer.echo(ensure_default_model())
    except ModelFetchError as error:
        fail(str(error))


app.command()(serve)
