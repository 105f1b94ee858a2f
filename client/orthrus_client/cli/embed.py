"""`orthrus-client embed`: texts in, vectors out."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import Connection, Embedding, Requests
from orthrus_client.cli.terminal import read_input

if TYPE_CHECKING:
    from orthrus_client import Embeddings

NUMPY, JSON_LINES = ".npy", ".jsonl"


@with_option_groups
def embed(
    embedding: Embedding,
    requests: Requests,
    connection: Connection,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to embed.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Embed the lines of this file; '-' is stdin.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write: .npy, a float32 array of one row for each text, or .jsonl.",
            show_default="JSON lines on stdout",
        ),
    ] = None,
) -> None:
    """Embed texts: the arguments, or else the lines of a file or of stdin.

    A line of JSON is {"text": ..., "num_input_tokens": ..., "embedding": [...]}.
    """
    if texts and file:
        raise typer.BadParameter("texts come as arguments or from a file, not both", param_hint="--file")
    if output is not None:
        _check(output)
    listed = texts or _lines(file)
    arguments = requests.arguments()
    result = connection.run(
        lambda client: client.embed_with_usage(listed, timeout=connection.timeout, **arguments, **embedding.options())
    )
    if output is None:
        for line in _json_lines(listed, result):
            typer.echo(line)
    elif output.suffix == NUMPY:
        import numpy as np

        np.save(output, result.vectors, allow_pickle=False)
    else:
        with output.open("w", encoding="utf-8") as lines:
            lines.writelines(f"{line}\n" for line in _json_lines(listed, result))


def _check(output: Path) -> None:
    """Before the work is done, not after."""
    if output.suffix not in (NUMPY, JSON_LINES):
        raise typer.BadParameter(f"{str(output)!r} ends neither in {NUMPY} nor in {JSON_LINES}", param_hint="--output")
    if not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(output.parent)!r}", param_hint="--output")


def _lines(file: Path | None) -> list[str]:
    lines = read_input(file, "text").rstrip("\n").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ValueError(f"{file or 'stdin'}, line {number}: there is no text in it")
    return lines


def _json_lines(texts: Sequence[str], result: "Embeddings") -> Iterator[str]:
    for text, count, vector in zip(texts, result.num_input_tokens.tolist(), result.vectors.tolist(), strict=True):
        numbers = [float(f"{number:.9g}") for number in vector]  # nine digits give a float32 back exactly
        entry = {"text": text, "num_input_tokens": count, "embedding": numbers}
        yield json.dumps(entry, ensure_ascii=False)
