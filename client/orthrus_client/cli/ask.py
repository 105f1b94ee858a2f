"""`orthrus-client ask`: answers a question by iterative retrieval over an index folder, and shows how."""

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from orthrus_client.cli.index import Folder, hit_line, query_options
from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import Connection, Generating, Prompting
from orthrus_client.cli.terminal import read_input, shown, write

if TYPE_CHECKING:
    from orthrus_client import AsyncOrthrusClient


@with_option_groups
def ask(
    folder: Folder,
    prompting: Prompting,
    generating: Generating,
    connection: Connection,
    question: Annotated[str | None, typer.Argument(help="The question.", show_default="stdin")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of retrieval and generation.")] = 2,
    documents: Annotated[int, typer.Option(min=1, help="How many documents to find in a round.")] = 4,
) -> None:
    """Answer a question from an index folder, in rounds: each searches with the question and the answer before.

    Always takes the likeliest token, unless --temperature says otherwise.
    """
    from orthrus_client.index_folder import IndexFolder
    from orthrus_client.results import Chunk
    from orthrus_client.retrieval import IterativeRetriever, Retrieval

    opened = IndexFolder.open(folder)
    if question is None:
        question = read_input(None, "question").strip()
    asked = question

    async def work(client: "AsyncOrthrusClient") -> None:
        retriever = IterativeRetriever(
            client,
            opened.index,
            rounds=rounds,
            top_k=documents,
            sampling={"temperature": 0.0} | generating.sampling(),
            embedding=await query_options(client, opened, prompting.options(), connection.timeout),
        )
        async with aclosing(retriever.stream(asked, timeout=connection.timeout)) as events:
            async for event in events:
                if isinstance(event, Retrieval):
                    typer.secho(f"round {event.round}", bold=True)
                    typer.echo(f"query: {shown(event.query)}")
                    for hit in event.hits:
                        typer.secho(hit_line(hit), dim=True)
                elif isinstance(event, Chunk):
                    write(event.text)
                else:
                    write("\n" if event.round == rounds else "\n\n")

    connection.run(work)
