"""Puts loads on the engine's loop and times them: embeddings, decodes, and both together under each policy.

All requests are there from the start, so that what is measured is the engine and not a client. Knows nothing of what a
device could do at most, and of who reads the numbers.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

import torch

from orthrus_backend.adapters import Adapter
from orthrus_backend.config import PolicyName, SchedulerSettings
from orthrus_backend.outputs import Embedded, Produced
from orthrus_backend.params import SamplingParams
from orthrus_backend.plan import Plan
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Request
from tools.gpu_check.device import repeated, seconds_of
from tools.gpu_check.loop import Loop
from tools.gpu_check.models import Prepared


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. Lengths and budgets are in tokens."""

    text: int
    prompt: int
    output: int  # of a generation beside embeddings
    running: tuple[int, ...]  # generations that decode together
    budgets: tuple[int, ...]  # of a step of embeddings
    mixed_budget: int  # of a step of both
    chunk: int  # of a turn in it
    steps: int  # of embeddings in a repetition
    texts: int  # beside generations ...
    generations: int  # ... and these
    repetitions: int
    decode_steps: int


FULL = Sizes(
    text=512,
    prompt=512,
    output=64,
    running=(1, 32, 256),
    budgets=(512, 2048, 8192),
    mixed_budget=2048,
    chunk=512,
    steps=4,
    texts=64,
    generations=32,
    repetitions=5,
    decode_steps=20,
)
ON_CPU = Sizes(
    text=128,
    prompt=128,
    output=32,
    running=(1, 8, 32, 64),
    budgets=(128, 512),
    mixed_budget=512,
    chunk=256,
    steps=2,
    texts=32,
    generations=8,
    repetitions=3,
    decode_steps=10,
)
TINY = Sizes(
    text=8,
    prompt=4,
    output=4,
    running=(1, 4, 16),
    budgets=(16, 64),
    mixed_budget=32,
    chunk=8,
    steps=2,
    texts=8,
    generations=4,
    repetitions=2,
    decode_steps=2,
)


@dataclass(frozen=True, slots=True)
class Timing:
    """What the clock said. A repetition computes `plans`, and `tokens` tokens that count."""

    tokens: int
    seconds: Sequence[float]  # of each repetition
    plans: Sequence[Plan]
    scheduling: float  # share of the time that went to schedule and commit
    details: Mapping[str, float] = field(default_factory=dict)


class Bench:
    """Times one model."""

    def __init__(self, model: Prepared, sizes: Sizes) -> None:
        self._model = model
        self._sizes = sizes
        self._device = model.backbone.device
        self._block = model.computation.attention.block_size
        self._generator = torch.Generator().manual_seed(0)

    def embeddings(self, budget: int, adapter: Adapter | None) -> Timing:
        """Whole texts only, as many in a step as fit."""
        sizes = self._sizes
        loop = Loop(self._model, SchedulerSettings(token_budget=budget, chunk_size=0, max_running=1), 2 * sizes.text)
        count = sizes.steps * budget // sizes.text
        batches = [[self._text(adapter) for _ in range(count)] for _ in range(1 + sizes.repetitions)]

        def run() -> None:
            loop.forget()
            loop.submit(batches.pop())
            while loop.scheduler.has_work:
                loop.step()

        seconds = repeated(run, self._device, sizes.repetitions)
        return Timing(count * sizes.text, seconds, loop.plans, loop.scheduling_seconds / seconds[-1])

    def decodes(self, running: int) -> Timing:
        """Single steps of `running` generations that have read their prompts."""
        sizes = self._sizes
        most = sizes.decode_steps + running + 3  # tokens: who begins first has decoded most when the last one begins
        loop = Loop(
            self._model,
            SchedulerSettings(token_budget=running + sizes.mixed_budget, max_running=running),
            running * (sizes.prompt + most + self._block),
        )
        loop.submit([self._generation(most) for _ in range(running)])
        while len(loop.scheduler.running) < running:
            loop.step()
        loop.step()  # the first of this shape does not count
        loop.forget()
        seconds = [seconds_of(loop.step, self._device) for _ in range(sizes.decode_steps)]
        middle = loop.plans[len(loop.plans) // 2]  # each step sees one key more than the one before
        return Timing(running, seconds, [middle], loop.scheduling_seconds / sum(seconds))

    def mixed(self, policy: PolicyName, adapters: Sequence[Adapter]) -> Timing:
        """Texts with adapters and generations without, in any order, until the last one is done."""
        sizes = self._sizes
        settings = SchedulerSettings(
            policy=policy, token_budget=sizes.mixed_budget, chunk_size=sizes.chunk, max_running=sizes.generations
        )
        kept = sizes.generations * (sizes.prompt + sizes.output + self._block) + sizes.text + self._block
        loop = Loop(self._model, settings, kept)
        batches = [self._both(adapters) for _ in range(1 + sizes.repetitions)]
        ends: dict[Kind, list[float]] = {}

        def run() -> None:
            loop.forget()
            ends.update({kind: [] for kind in Kind})
            loop.submit(batches.pop())
            started = time.perf_counter()
            while loop.scheduler.has_work:
                for output in loop.step():
                    if isinstance(output, Embedded | Produced) and output.final:
                        ends[output.request.kind].append(time.perf_counter() - started)

        seconds = repeated(run, self._device, sizes.repetitions)
        details = {
            "embedding_median_seconds": median(ends[Kind.EMBED]),
            "embedding_last_seconds": max(ends[Kind.EMBED]),
            "generation_median_seconds": median(ends[Kind.GENERATE]),
            "generation_last_seconds": max(ends[Kind.GENERATE]),
            "mixed_steps": sum(plan.composition == "mixed" for plan in loop.plans),
        }
        tokens = sum(plan.tokens for plan in loop.plans)
        return Timing(tokens, seconds, loop.plans, loop.scheduling_seconds / seconds[-1], details)

    def _both(self, adapters: Sequence[Adapter]) -> list[Request]:
        texts = [self._text(adapters[i % len(adapters)]) for i in range(self._sizes.texts)]
        generations = [self._generation(self._sizes.output) for _ in range(self._sizes.generations)]
        return Random(0).sample([*texts, *generations], len(texts) + len(generations))

    def _text(self, adapter: Adapter | None) -> EmbedRequest:
        return EmbedRequest("", self._ids(self._sizes.text), adapter, 0.0)

    def _generation(self, tokens: int) -> GenerateRequest:
        ids = self._ids(self._sizes.prompt)
        params = SamplingParams(temperature=0)
        return GenerateRequest("", ids, None, 0.0, params=params, prompt_length=len(ids), max_tokens=tokens)

    def _ids(self, length: int) -> list[int]:
        vocabulary = int(self._model.backbone.config.vocab_size)
        drawn: list[int] = torch.randint(vocabulary, (length,), generator=self._generator).tolist()
        return drawn
