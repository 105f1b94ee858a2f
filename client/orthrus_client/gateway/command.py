"""`orthrus-client gateway`: reads options and starts what they ask for. Imports the gateway itself only then."""

import ipaddress
import json
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn

import typer

from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import SERVER, Connection

KEY_VARIABLE = "ORTHRUS_API_KEY"
GATEWAY = "The gateway"


@dataclass(frozen=True, slots=True)
class Upstream(Connection):
    """The connection to the server, with other defaults: whoever asks a gateway retries as its own client does."""

    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds for one request, at most.", rich_help_panel=SERVER)
    ] = 600.0
    retries: Annotated[
        int,
        typer.Option(min=0, help="How often to try again when the server is unavailable.", rich_help_panel=SERVER),
    ] = 0


@with_option_groups
def gateway(
    upstream: Upstream,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any other than 127.0.0.1 lets other machines in.", rich_help_panel=GATEWAY
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.", rich_help_panel=GATEWAY)
    ] = 8080,
    model_name: Annotated[
        str | None,
        typer.Option(
            help="The name by which requests ask for the model.",
            show_default="its own short name",
            rich_help_panel=GATEWAY,
        ),
    ] = None,
    metrics_url: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of Triton's metrics: for the page's chart, and for names of adapters that came later.",
            rich_help_panel=SERVER,
        ),
    ] = "127.0.0.1:8002",
    max_body: Annotated[
        float,
        typer.Option(
            metavar="MIB", min=0.001, help="Size of a request's body, at most, in MiB.", rich_help_panel=GATEWAY
        ),
    ] = 8.0,
    drain_timeout: Annotated[
        int,
        typer.Option(min=0, help="Seconds that running requests get to finish at the end.", rich_help_panel=GATEWAY),
    ] = 30,
    log_level: Annotated[
        Literal["critical", "error", "warning", "info", "debug"],
        typer.Option(help="What to log on stderr; info: a line for each request too.", rich_help_panel=GATEWAY),
    ] = "info",
) -> None:
    """Serve OpenAI's API: /v1/embeddings, /v1/completions, /v1/chat/completions, /v1/models, and /health.

    At / there is a page for a browser, which answers questions in rounds and shows them as they happen.

    With ORTHRUS_API_KEY in the environment, whoever asks for anything below /v1 or /demo must send that key; the page
    asks for it.

    When it listens, one line of JSON on stdout gives its address: {"http": "127.0.0.1:8080"}; a terminal is spared it.
    """
    key = os.environ.get(KEY_VARIABLE)
    if key is not None and not (key.strip() and key.isascii()):
        _fail(f"{KEY_VARIABLE} is set, but is no key: it is empty or not ASCII", status=2)
    try:
        from orthrus_client.gateway.app import Settings
        from orthrus_client.gateway.server import run
    except ImportError as error:
        missing = f"{error.name} is missing" if error.name else str(error)
        _fail(f"{missing}: pip install 'orthrus-client[gateway]'", status=1)
    upstream.client().close()  # options that do not fit together show now, and in one line
    settings = Settings(upstream.async_client, upstream.timeout, model_name, key, int(max_body * 2**20), metrics_url)

    def announce(address: str) -> None:
        if not sys.stdout.isatty():
            typer.echo(json.dumps({"http": address}))
        typer.echo(
            f"OpenAI's API is at http://{address}/v1, a page to try it at http://{address}/. Ctrl-C stops it.", err=True
        )
        if not _is_loopback(host):
            typer.echo(_exposure(address, with_key=key is not None), err=True)

    try:
        was_ready = run(settings, host, port, log_level, drain_timeout, announce)
    except ValueError as error:
        _fail(str(error), status=2)
    if not was_ready:
        raise typer.Exit(1)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _exposure(address: str, *, with_key: bool) -> str:
    rest = "in clear text: put TLS before it." if with_key else f"and asks nobody for a key: set {KEY_VARIABLE}."
    return (
        f"WARNING: other machines can reach {address}: everything below /v1 (embeddings, completions, names of models),"
        f" the page and what it asks for below /demo, /health and /openapi.json. It speaks HTTP {rest}"
    )


def _fail(message: str, status: int) -> NoReturn:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(status)
