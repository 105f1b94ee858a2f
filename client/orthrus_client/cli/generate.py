"""`orthrus-client generate`: a prompt in, the text that follows it out."""

import json
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import Connection, Generating
from orthrus_client.cli.terminal import read_input, write_chunks


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
    with connection.client() as client:
        if as_json:
            result = client.generate(prompt, timeout=connection.timeout, **generating.sampling())
            typer.echo(json.dumps(asdict(result), ensure_ascii=False))
            return
        with closing(client.stream(prompt, timeout=connection.timeout, **generating.sampling())) as chunks:
            write_chunks(chunks)
