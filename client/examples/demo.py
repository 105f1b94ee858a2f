"""Answers five questions by iterative retrieval through a real server; run by `make demo`.

Starts a server of its own (or uses a running one, see --url), embeds the sample corpus through it, and asks.
The questions come one after the other, as users send them, and none waits for the one before. So the embeddings of one
meet the generations of others at the server, which runs them in shared steps.
"""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import httpx2
from local_server import local_server
from orthrus_client import AsyncOrthrusClient, OrthrusError
from orthrus_client.index import DocumentIndex
from orthrus_client.retrieval import Answer, IterativeRetriever, Step
from orthrus_client.sample_corpus import SampleCorpus, SampleQuestion, sample_corpus
from orthrus_client.server_counts import ServerCounts
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from server_metrics import counts_since, read_counts

TIMEOUT = 60.0  # seconds for one call
INTERVAL = 0.5  # seconds from question to question
TOP_K = 3  # more facts confuse a generator as small as the default one

ABOUT_THE_MODEL = """\
The default model is tiny, 135 million parameters: its adapter finds most documents, but answers will often be wrong.
"""


def main() -> int:
    """Runs the demo; 0 when every question was answered."""
    options = _options()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)  # so that SIGTERM, too, ends the server that was started here
    try:
        with _server(console, options) as (grpc, metrics):
            corpus = sample_corpus()
            before, started = read_counts(metrics), time.perf_counter()
            answers, sent = asyncio.run(_ask(console, grpc, corpus, options.rounds))
            seconds = time.perf_counter() - started
            _print_answers(console, answers, corpus.questions)
            _print_counts(console, counts_since(metrics, before, sent), seconds)
    except KeyboardInterrupt:
        console.print("[red]interrupted")
        return 130
    except (OrthrusError, RuntimeError, ValueError, httpx2.HTTPError) as error:
        Console(stderr=True).print(Text.assemble(("error: ", "red"), str(error)))
        return 1
    return 0


async def _ask(console: Console, url: str, corpus: SampleCorpus, rounds: int) -> tuple[list[Answer], int]:
    """The answers, and how many requests they took."""
    documents, questions = corpus.documents, [question.text for question in corpus.questions]
    async with AsyncOrthrusClient(url) as client:
        console.print(f"[bold]Indexing {len(documents)} documents[/] of {corpus.company}")
        vectors = await client.embed([document.text for document in documents], timeout=TIMEOUT)
        retriever = IterativeRetriever(
            client,
            DocumentIndex.build(documents, vectors),
            rounds=rounds,
            top_k=TOP_K,
            sampling={"max_tokens": 48, "temperature": 0.0},
            on_step=lambda step: _print_step(console, step),
        )
        console.print(f"[bold]Asking {len(questions)} questions[/], one every {INTERVAL} s, {rounds} rounds each")
        console.print(ABOUT_THE_MODEL, style="dim")

        async def ask(number: int) -> Answer:
            await asyncio.sleep(number * INTERVAL)
            return await retriever.ask(questions[number], timeout=TIMEOUT)

        answers = await asyncio.gather(*map(ask, range(len(questions))))
    return answers, len(documents) + 2 * rounds * len(questions)


def _print_step(console: Console, step: Step) -> None:
    console.print(Text.assemble((f"round {step.round}  ", "bold cyan"), (step.question, "bold")))
    lines = Table.grid(padding=(0, 2))
    lines.add_row("query", Text(step.query))
    for number, hit in enumerate(step.hits):
        lines.add_row("" if number else "documents", Text(f"{hit.score:5.2f}  {hit.document.id}: {hit.document.text}"))
    lines.add_row("text", Text(step.answer.text.strip(), style="green"))
    answer = step.answer
    lines.add_row(
        "time",
        f"embed {step.embed_seconds:.2f} s, search {step.search_seconds * 1000:.1f} ms, "
        f"generate {step.generate_seconds:.2f} s "
        f"({answer.num_input_tokens} tokens in, {answer.num_output_tokens} out, {answer.finish_reason})",
    )
    console.print(Padding(lines, (0, 0, 1, 2)))


def _print_answers(console: Console, answers: Sequence[Answer], questions: Sequence[SampleQuestion]) -> None:
    rounds = len(answers[0].steps)
    title = "Answers, and documents needed that retrieval returned (*: one came first)"
    table = Table(title=title, title_justify="left")
    for heading in ("question", "answer", *(f"round {number + 1}" for number in range(rounds))):
        table.add_column(heading)
    right_first = 0
    for answer, question in zip(answers, questions, strict=True):
        found = [question.needs & {hit.document.id for hit in step.hits} for step in answer.steps]
        firsts = [step.hits[0].document.id in question.needs for step in answer.steps]
        right_first += sum(firsts)
        cells = [f"{len(ids)} of {len(question.needs)}{' *' * first}" for ids, first in zip(found, firsts, strict=True)]
        table.add_row(Text(answer.question), Text(answer.text), *cells)
    console.print(table)
    console.print(f"A document that is needed came first in {right_first} of {rounds * len(answers)} rounds")


def _print_counts(console: Console, counts: ServerCounts, seconds: float) -> None:
    requests, tokens, steps = counts.requests, counts.tokens, counts.steps
    table = Table("what the server counted", "", title=f"Summary of {seconds:.1f} s", title_justify="left")
    table.add_row("requests", ", ".join(f"{number} {kind}" for kind, number in sorted(requests.items())))
    table.add_row("tokens", ", ".join(f"{number} {kind}" for kind, number in sorted(tokens.items())))
    table.add_row("steps", ", ".join(f"{number} {kind}" for kind, number in sorted(steps.items())))
    embedding_steps = steps["embed"] + steps["mixed"]
    table.add_row(
        "mixed steps", f"{steps['mixed']} of the {embedding_steps} steps with embeddings had generations, too"
    )
    table.add_row("embeddings/s", f"{requests['embed'] / seconds:.1f}")
    table.add_row("tokens/s", f"{tokens.total() / seconds:.0f}, of them {tokens['decode'] / seconds:.0f} generated")
    console.print(table)


@contextmanager
def _server(console: Console, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The addresses of gRPC and of the metrics: of the server that was named, else of one that is started here."""
    if options.url:
        yield options.url, options.metrics_url
        return
    console.print("[bold]Starting a server[/] (the first time, this fetches the default model)")
    started = time.perf_counter()
    with local_server() as endpoints:
        console.print(f"ready after {time.perf_counter() - started:.1f} s")
        yield endpoints.grpc, endpoints.metrics
    console.print("server stopped")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", metavar="HOST:PORT", help="gRPC address of a running server; default: start one")
    parser.add_argument("--metrics-url", metavar="HOST:PORT", default="127.0.0.1:8002", help="its metrics address")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of retrieval per question (default: 3)")
    return parser.parse_args()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
