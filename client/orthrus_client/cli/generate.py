"""`orthrus-client generate`: a prompt in, the text that follows it out."""

import json
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import Connection, Generating
from orthrus_client.cli.terminal import read_input, write

if TYPE_CHECKING:
    from orthrus_client import AsyncOrthrusClient, Sampling


@with_option_groups
def generate(
    generating: Generating,
    connection: Connection,
    prompt: Annotated[str | None, typer.Argument(help="The text to go on with.", show_default="stdin")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with text, finish reason and tokens at the end.")
    ] = False,
) -> None:
    """Continue a text; it is printed as it is written. Ctrl-C stops the server, too."""
    if prompt is None:
        prompt = read_input(None, "prompt")
    connection.run(lambda client: _generate(client, prompt, connection.timeout, generating.sampling(), as_json))


async def _generate(
    client: "AsyncOrthrusClient", prompt: str, timeout: float | None, sampling: "Sampling", as_json: bool
) -> None:
    if as_json:
        result = await client.generate(prompt, timeout=timeout, **sampling)
        typer.echo(json.dumps(asdict(result), ensure_ascii=False))
        return
    async with aclosing(client.stream(prompt, timeout=timeout, **sampling)) as chunks:
        async for chunk in chunks:
            write(chunk.text)
    write("\n")
