"""`orthrus-client index`: builds, extends and searches index folders."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import Connection, Embedding, Requests
from orthrus_client.cli.terminal import shown
from orthrus_client.options import EmbedOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orthrus_client import AsyncOrthrusClient
    from orthrus_client.index import Hit
    from orthrus_client.index_folder import IndexFolder, Recipe

index = typer.Typer(no_args_is_help=True, help="Build, extend and search index folders.")

Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="The index folder.")]
Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="SOURCE...",
        help="Text files, .jsonl files of objects with a text, or folders of such (.txt, .md, .rst, .jsonl).",
    ),
]
ChunkCharacters = Annotated[int, typer.Option(help="Characters of one piece of a text, at most.")]
TopK = Annotated[int, typer.Option(min=1, help="How many documents to find.")]
CHUNK_CHARACTERS = 1200
PROMPTS = ("prompt_name", "instruction")


@index.command("build")
@with_option_groups
def build(
    folder: Folder,
    sources: Sources,
    embedding: Embedding,
    requests: Requests,
    connection: Connection,
    chunk_characters: ChunkCharacters = CHUNK_CHARACTERS,
    whiten: Annotated[
        int | None,
        typer.Option(
            help="Keep so many whitened principal components: for a model that was not trained to embed.",
            show_default="vectors as they are",
        ),
    ] = None,
) -> None:
    """Make an index folder from texts, which are cut at paragraphs."""
    from orthrus_client.documents import read_documents
    from orthrus_client.index_folder import IndexFolder, require_free

    require_free(folder)
    documents = read_documents(sources, chunk_characters=chunk_characters)
    options = embedding.options()

    async def work(client: "AsyncOrthrusClient") -> "tuple[Recipe, NDArray[np.float32]]":
        recipe = await current_recipe(client, options, connection.timeout)
        texts = [document.text for document in documents]
        return recipe, await client.embed(texts, timeout=connection.timeout, **requests.arguments(), **options)

    recipe, vectors = connection.run(work)
    made = IndexFolder.create(folder, recipe, documents, vectors, whiten)
    typer.echo(f"{folder}: {len(made.index)} documents, {recipe}", err=True)


@index.command("add")
@with_option_groups
def add(
    folder: Folder,
    sources: Sources,
    embedding: Embedding,
    requests: Requests,
    connection: Connection,
    chunk_characters: ChunkCharacters = CHUNK_CHARACTERS,
) -> None:
    """Add texts to an index folder; those that are in it already are left out."""
    from orthrus_client.documents import read_documents
    from orthrus_client.index_folder import IndexFolder

    opened = IndexFolder.open(folder)
    documents = opened.new(read_documents(sources, chunk_characters=chunk_characters))
    options = opened.manifest.recipe.options | embedding.options()
    recipe = opened.manifest.recipe

    async def work(client: "AsyncOrthrusClient") -> "NDArray[np.float32] | None":
        recipe.require(await current_recipe(client, options, connection.timeout), str(folder))
        texts = [document.text for document in documents]
        if not texts:
            return None
        return await client.embed(texts, timeout=connection.timeout, **requests.arguments(), **options)

    vectors = connection.run(work)
    if vectors is not None:
        opened = opened.extend(documents, vectors)
    typer.echo(f"{folder}: {len(documents)} added, {len(opened.index)} documents", err=True)


@index.command("search")
@with_option_groups
def search(
    folder: Folder,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    embedding: Embedding,
    connection: Connection,
    top_k: TopK = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each document.")] = False,
) -> None:
    """Find the documents nearest to a text, best first."""
    from orthrus_client.index_folder import IndexFolder

    opened = IndexFolder.open(folder)

    async def work(client: "AsyncOrthrusClient") -> "NDArray[np.float32]":
        options = await query_options(client, opened, embedding.options(), connection.timeout)
        return await client.embed(query, timeout=connection.timeout, **options)

    for hit in opened.index.search(connection.run(work)[0], top_k):
        entry = {"id": hit.document.id, "score": hit.score, "text": hit.document.text}
        typer.echo(json.dumps(entry, ensure_ascii=False) if as_json else hit_line(hit))


def hit_line(hit: "Hit") -> str:
    """A document that was found, for people to read."""
    text = " ".join(hit.document.text.split())
    return shown(f"{hit.score:6.3f}  {hit.document.id}: {text}")


async def query_options(
    client: "AsyncOrthrusClient", opened: "IndexFolder", given: EmbedOptions, timeout: float | None
) -> EmbedOptions:
    """How to embed a query for an index; raises `ValueError` if the server makes vectors of another kind.

    Many models have one prompt for documents and another for queries: a prompt that is given makes no other kind.
    """
    recipe = opened.manifest.recipe
    prompts = {name: value for name, value in given.items() if name in PROMPTS}
    kind = recipe.options | cast(EmbedOptions, {name: value for name, value in given.items() if name not in PROMPTS})
    recipe.require(await current_recipe(client, kind, timeout), str(opened.folder))
    kept = {name: value for name, value in kind.items() if not prompts or name not in PROMPTS}
    return cast(EmbedOptions, kept | prompts)


async def current_recipe(client: "AsyncOrthrusClient", options: EmbedOptions, timeout: float | None) -> "Recipe":
    """How the server makes vectors now."""
    from orthrus_client.index_folder import PROBE, Recipe

    probe = (await client.embed(PROBE, timeout=timeout, **options))[0]
    return Recipe.of(await client.embedding_model(), options, probe)
