"""Sends the requests of a scenario to a target, in open or closed loop, and notes what becomes of each.

One asyncio loop; the records are complete when a phase has ended, since what still runs then is cancelled. Knows no
protocol: a target is asked through `loadtest.targets.target`.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from itertools import islice

import numpy as np

from loadtest.arrivals import gaps
from loadtest.records import Kind, Outcome, PhaseRun, Record, Window
from loadtest.scenario import Closed, Mix, Phase, Scenario, Stream
from loadtest.targets.target import Target
from loadtest.workload import Embedding, Generation, Item, Question, Vocabulary, items

MOST_FAILURES = 50  # in a row; then the target is taken for broken
FAILURE_PAUSE = 0.1  # seconds until a client tries again
WARM = Mix(kind="mix", embed_share=0.5, embed_tokens=64, prompt_tokens=64, output_tokens=16)
WARM_REQUESTS = 16


class BrokenTargetError(RuntimeError):
    """A target that answers nothing, or counts tokens otherwise than the workload; the message says so."""


async def drive(target: Target, scenario: Scenario, vocabulary: Vocabulary, seed: int) -> list[PhaseRun]:
    """Run all phases of a scenario in turn. The same `seed` sends the same requests.

    Raises:
        BrokenTargetError: there is nothing to be measured.
    """
    runs = []
    for number, phase in enumerate(scenario.phases):
        runs.append(await _PhaseDriver(target).run(phase, vocabulary, [seed, number]))
    return runs


async def warm_up(target: Target, vocabulary: Vocabulary, longest: int, seed: int = 0) -> None:
    """Let the target answer some requests of its kinds, of at most `longest` tokens, that are not measured."""
    work = WARM if longest >= WARM.longest else WARM.model_copy(update=_short(longest))
    source = islice(items(work, vocabulary, [seed, 2**32]), WARM_REQUESTS)
    asker = _Asker(target)
    wanted = [item for item in source if _kind(item) in target.kinds]
    async with asyncio.TaskGroup() as tasks:
        for item in wanted:
            tasks.create_task(asker.ask(item, time.perf_counter()))
    for record in asker.records:
        if record.outcome is Outcome.FAILED:
            raise BrokenTargetError(f"the first requests fail: {record.error}")


def _short(longest: int) -> dict[str, int]:
    part = max(1, longest // 2)
    return {"embed_tokens": part, "prompt_tokens": part, "output_tokens": part}


def _kind(item: Item) -> Kind:
    return Kind.EMBED if isinstance(item, Embedding) else Kind.GENERATE


class _PhaseDriver:
    """One phase."""

    def __init__(self, target: Target) -> None:
        self._asker = _Asker(target)

    async def run(self, phase: Phase, vocabulary: Vocabulary, seed: list[int]) -> PhaseRun:
        start = time.perf_counter()
        streams = [
            asyncio.create_task(self._stream(stream, vocabulary, [*seed, number], start))
            for number, stream in enumerate(phase.streams)
        ]
        try:
            done, _ = await asyncio.wait(streams, timeout=phase.seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()  # a stream that failed fails the phase
        finally:
            end = time.perf_counter()
            for task in streams:
                task.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        answered = [record.end for record in self._asker.records if record.end is not None]
        if all(task.done() and not task.cancelled() for task in streams):
            end = max(answered, default=end)
        return PhaseRun(phase.name, Window(start + phase.warmup, end), self._asker.records)

    async def _stream(self, stream: Stream, vocabulary: Vocabulary, seed: list[int], start: float) -> None:
        source = items(stream.work, vocabulary, [*seed, 0])
        if stream.requests is not None:
            source = islice(source, stream.requests)
        try:
            if isinstance(stream.arrivals, Closed):
                await self._closed(source, stream.arrivals.clients)
            else:
                await self._open(source, gaps(stream.arrivals, np.random.default_rng([*seed, 1])), start)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _closed(self, source: Iterator[Item], clients: int) -> None:
        """Each client takes the next request of all when it has its answer."""

        async def client() -> None:
            for item in source:
                if not await self._asker.ask(item, time.perf_counter()):
                    await asyncio.sleep(FAILURE_PAUSE)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(client())

    async def _open(self, source: Iterator[Item], waits: Iterator[float], start: float) -> None:
        """Requests are sent when they are due, whatever has become of the others."""
        due = start
        async with asyncio.TaskGroup() as tasks:
            for item, gap in zip(source, waits, strict=False):
                due += gap
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(self._asker.ask(item, due))


class _Asker:
    """Asks a target for one item, and keeps the records."""

    def __init__(self, target: Target) -> None:
        self.records: list[Record] = []
        self._target = target
        self._failures = 0  # in a row

    async def ask(self, item: Item, due: float) -> bool:
        """Whether it was answered."""
        match item:
            case Embedding():
                return await self._embed(item.text, due, item.tokens)
            case Generation():
                return await self._generate(item.prompt, item.output_tokens, due, item.tokens) is not None
            case Question():
                return await self._answer(item, due)

    async def _embed(self, text: str, due: float, tokens: int | None = None) -> bool:
        record = self._begin(Kind.EMBED, due)
        with self._ending(record):
            record.tokens_in = await self._target.embed(text)
            _check("a text", tokens, record.tokens_in)
        return record.outcome is Outcome.OK

    async def _generate(self, prompt: str, output_tokens: int, due: float, tokens: int | None = None) -> str | None:
        """The text, or None."""
        record, texts = self._begin(Kind.GENERATE, due), []
        with self._ending(record):
            async with aclosing(self._target.generate(prompt, output_tokens)) as pieces:
                async for piece in pieces:
                    record.tokens_in = max(record.tokens_in, piece.tokens_in)
                    if piece.tokens:
                        record.add(time.perf_counter(), piece.tokens)
                    texts.append(piece.text)
            _check("a prompt", tokens, record.tokens_in)
            _check("an answer", output_tokens, record.tokens_out)
        return "".join(texts) if record.outcome is Outcome.OK else None

    async def _answer(self, question: Question, due: float) -> bool:
        """All rounds of a question; the query of each is the question and the last answer."""
        record = self._begin(Kind.QUERY, due)
        answer: str | None = ""  # of the round before
        with self._ending(record):
            for found in question.rounds:
                now = due if found is question.rounds[0] else time.perf_counter()
                query = f"{question.text} {answer}".strip()
                if not await self._embed(query, now):
                    raise RuntimeError("its query could not be embedded")
                prompt = " ".join(filter(None, (question.instruction, found.documents, question.text)))
                answer = await self._generate(prompt, found.output_tokens, time.perf_counter())
                if answer is None:
                    raise RuntimeError("a round got no answer")
        return record.outcome is Outcome.OK

    def _begin(self, kind: Kind, due: float) -> Record:
        record = Record(kind, due, time.perf_counter())
        self.records.append(record)
        return record

    @contextmanager
    def _ending(self, record: Record) -> Iterator[None]:
        """Note how `record` ends. What is cancelled stays unfinished; a failure goes no further, unless all fail."""
        try:
            yield
        except Exception as error:
            record.end, record.outcome = time.perf_counter(), Outcome.FAILED
            record.error = f"{type(error).__name__}: {error}"
            self._failures += 1
            if isinstance(error, BrokenTargetError):
                raise
            if self._failures >= MOST_FAILURES:
                text = f"{MOST_FAILURES} requests in a row failed, the last with {record.error}"
                raise BrokenTargetError(text) from error
        else:
            record.end, record.outcome = time.perf_counter(), Outcome.OK
            self._failures = 0


def _check(what: str, expected: int | None, counted: int) -> None:
    if expected is not None and counted != expected:
        raise BrokenTargetError(f"{what} of {expected} tokens has {counted} as the target counts them")
