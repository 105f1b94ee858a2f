"""The program `orthrus-client`: its commands, and what becomes of their failures."""

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orthrus_client.cli.ask import ask
from orthrus_client.cli.chat import chat
from orthrus_client.cli.embed import embed
from orthrus_client.cli.generate import generate
from orthrus_client.cli.index import index
from orthrus_client.gateway.command import gateway


class _Commands(TyperGroup):
    """Says what went wrong in one line. A traceback is left to faults of this program itself."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: whoever read our output has enough
            raise
        except (ValueError, ImportError, OSError) as error:
            raise _failed(error) from None
        except Exception as error:
            from orthrus_client.errors import OrthrusError

            if isinstance(error, OrthrusError):
                raise _failed(error) from None
            raise


app = typer.Typer(
    name="orthrus-client",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(embed)
app.command()(generate)
app.command()(chat)
app.command()(ask)
app.command()(gateway)
app.add_typer(index, name="index")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as package_version

        typer.echo(f"orthrus-client {package_version('orthrus-client')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Embed, generate and answer questions with an Orthrus server.

    Exit status: 0 when all is well; 1 when a call failed; 2 when an option is wrong; 130 after Ctrl-C.
    """


def main() -> None:
    """Entry point of `orthrus-client`."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or gRPC writes its own lines beside the one that says the fault
    app()


def _failed(error: Exception) -> typer.Exit:
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    return typer.Exit(1)
