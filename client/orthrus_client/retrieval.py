"""`IterativeRetriever`: answers a question in rounds of retrieve and generate. Knows no protocol and no index format.

Iter-RetGen (Shao et al. 2023, "Enhancing Retrieval-Augmented Large Language Models with Iterative Retrieval-Generation
Synergy"): the query of the first round is the question, that of round t is the question followed by the answer of round
t - 1. What a first answer names then finds the documents that the question alone does not lead to.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from orthrus_client.aio import AsyncOrthrusClient
from orthrus_client.index import Document, Hit
from orthrus_client.options import EmbedOptions, Message, Sampling
from orthrus_client.results import Chunk, Generation


class Index(Protocol):
    """What is searched: `orthrus_client.index.DocumentIndex`, or anything with its `search`."""

    def search(self, query: NDArray[np.float32], top_k: int, /) -> Sequence[Hit]: ...


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What a round found, before it generates. Times are in seconds."""

    round: int  # from 1
    question: str
    query: str
    hits: tuple[Hit, ...]
    embed_seconds: float
    search_seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One round for one question. Times are in seconds."""

    round: int  # from 1
    question: str
    query: str
    hits: tuple[Hit, ...]
    answer: Generation
    embed_seconds: float
    search_seconds: float
    generate_seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question came to, and how."""

    question: str
    text: str
    steps: tuple[Step, ...]


Prompt = Callable[[str, Sequence[Document]], Sequence[Message]]


def default_prompt(question: str, documents: Sequence[Document]) -> Sequence[Message]:
    """A chat that asks for a short answer to `question` from `documents` alone.

    One sentence, because the answer becomes part of the next query, and a longer one would outweigh the question there.
    """
    facts = "\n".join(f"- {document.text}" for document in documents)
    content = f"{facts}\n\nFrom these facts alone, in one short sentence: {question}"
    return [{"role": "user", "content": content}]


class IterativeRetriever:
    """Answers questions over an index, any number of them at once on one event loop."""

    def __init__(
        self,
        client: AsyncOrthrusClient,
        index: Index,
        *,
        rounds: int = 2,
        top_k: int = 4,
        prompt: Prompt = default_prompt,
        sampling: Sampling | None = None,
        embedding: EmbedOptions | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """Prepares a retriever; `embedding` has to fit how the documents of `index` were embedded.

        Args:
            rounds: of retrieval and generation, for every question.
            top_k: documents per round.
            prompt: makes the messages of a round from the question and the documents, best first.
            sampling: by default greedy, 64 tokens.
            on_step: is called after every round, on the event loop: it has to be quick.

        Raises:
            ValueError: `rounds` or `top_k` is less than 1.
        """
        for name, value in (("rounds", rounds), ("top_k", top_k)):
            if value < 1:
                raise ValueError(f"{name} is at least 1, not {value}")
        self._client = client
        self._index = index
        self._rounds = rounds
        self._top_k = top_k
        self._prompt = prompt
        self._sampling: Sampling = {"max_tokens": 64, "temperature": 0.0} if sampling is None else sampling
        self._embedding: EmbedOptions = embedding or {}
        self._on_step = on_step

    async def ask(self, question: str, *, timeout: float | None = None) -> Answer:
        """The answer to `question`; `timeout`, in seconds, is for each call to the server. Raises `OrthrusError`."""
        steps: list[Step] = []
        while len(steps) < self._rounds:
            found = await self._retrieve(question, steps, timeout)
            started = time.perf_counter()
            answer = await self._client.chat(self._messages(found), timeout=timeout, **self._sampling)
            steps.append(_step(found, answer, time.perf_counter() - started))
            if self._on_step is not None:
                self._on_step(steps[-1])
        return Answer(question, steps[-1].answer.text.strip(), tuple(steps))

    async def stream(self, question: str, *, timeout: float | None = None) -> AsyncGenerator[Retrieval | Chunk | Step]:
        """The same as it happens. Every round is a `Retrieval`, the pieces of its text, and the `Step` that it was."""
        steps: list[Step] = []
        while len(steps) < self._rounds:
            found = await self._retrieve(question, steps, timeout)
            yield found
            started, pieces = time.perf_counter(), []
            messages = self._messages(found)
            async with aclosing(self._client.stream_chat(messages, timeout=timeout, **self._sampling)) as chunks:
                async for chunk in chunks:
                    pieces.append(chunk)
                    yield chunk
            steps.append(_step(found, Generation.join(pieces), time.perf_counter() - started))
            if self._on_step is not None:
                self._on_step(steps[-1])
            yield steps[-1]

    async def ask_all(
        self, questions: Sequence[str], *, concurrency: int = 64, timeout: float | None = None
    ) -> list[Answer]:
        """The answers to all `questions`, in their order; up to `concurrency` are worked on at once.

        The first failure cancels the others and is raised.
        """
        free = asyncio.Semaphore(concurrency)

        async def ask(question: str) -> Answer:
            async with free:
                return await self.ask(question, timeout=timeout)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(question)) for question in questions]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _retrieve(self, question: str, before: Sequence[Step], timeout: float | None) -> Retrieval:
        query = f"{question} {before[-1].answer.text.strip()}" if before else question
        started = time.perf_counter()
        vectors = await self._client.embed(query, timeout=timeout, **self._embedding)
        embedded = time.perf_counter()
        hits = await asyncio.to_thread(self._index.search, vectors[0], self._top_k)  # a large index takes its time
        searched = time.perf_counter()
        return Retrieval(len(before) + 1, question, query, tuple(hits), embedded - started, searched - embedded)

    def _messages(self, found: Retrieval) -> Sequence[Message]:
        return self._prompt(found.question, [hit.document for hit in found.hits])


def _step(found: Retrieval, answer: Generation, generate_seconds: float) -> Step:
    return Step(
        round=found.round,
        question=found.question,
        query=found.query,
        hits=found.hits,
        answer=answer,
        embed_seconds=found.embed_seconds,
        search_seconds=found.search_seconds,
        generate_seconds=generate_seconds,
    )
