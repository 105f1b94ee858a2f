"""Anything in any order: submit, cancel, step, preempt, load and unload; every answer is the one it would get alone.

The scheduler and the runner are the real ones, over a tiny model with a pool of 8 blocks: somebody is always preempted.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orthrus_backend.adapters import Adapter
from orthrus_backend.model import Backbone
from orthrus_backend.outputs import Embedded, Ended, Output, Produced
from orthrus_backend.params import PoolingMode
from orthrus_backend.request import GenerateRequest, Kind, Outcome, Request
from tests.engine.tiny import Bench, adapter, backbone, embed, generate, random_ids

NUM_BLOCKS = 8  # of 16 tokens
MAX_RUNNING = 4
STOP_IDS = frozenset(range(3, 9))  # some generations meet one of them before their limit


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that an answer depends on."""

    kind: Kind
    length: int
    text: int  # which of the texts of this length
    version: int | None  # of the adapter; None: the base model
    pooling: PoolingMode = "mean"
    max_tokens: int = 1
    temperature: float = 0.0

    def request(self, adapter: Adapter | None) -> Request:
        ids = random_ids(self.length, seed=self.text)
        if self.kind is Kind.EMBED:
            return embed(ids, self.pooling, adapter)
        return generate(ids, self.max_tokens, adapter, self.text, STOP_IDS, temperature=self.temperature)


@cache
def model() -> Backbone:
    """One for all: adapters and benches come and go around it."""
    return backbone()


@cache
def alone(question: Question) -> Any:
    """The answer of an engine that has nothing else to do."""
    request = question.request(None if question.version is None else adapter(question.version))
    return Bench(model()).run([request])[request]


class Life(RuleBasedStateMachine):
    """The life of one engine."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(model(), NUM_BLOCKS, token_budget=24, chunk_size=8, max_running=MAX_RUNNING, patience=2)
        self.version: int | None = None
        self.adapter: Adapter | None = None  # what new requests get; requests that run may hold older ones
        self.questions: dict[Request, Question] = {}  # of live requests
        self.last_ended: Request | None = None

    @rule(
        length=st.integers(1, 120),
        text=st.integers(0, 2),
        pooling=st.sampled_from(["mean", "weighted_mean", "cls", "last"]),
        adapted=st.booleans(),
    )
    def submit_embed(self, length: int, text: int, pooling: PoolingMode, adapted: bool) -> None:
        self.submit(Question(Kind.EMBED, length, text, self.version if adapted else None, pooling))

    @rule(
        length=st.integers(1, 60),
        text=st.integers(0, 2),
        max_tokens=st.integers(1, 60),
        temperature=st.sampled_from([0.0, 1.0]),
        adapted=st.booleans(),
    )
    def submit_generate(self, length: int, text: int, max_tokens: int, temperature: float, adapted: bool) -> None:
        version = self.version if adapted else None
        self.submit(Question(Kind.GENERATE, length, text, version, max_tokens=max_tokens, temperature=temperature))

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.bench.scheduler.has_work:
                self.read(self.bench.step())

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.questions) - 1))
        request = list(self.questions)[position]
        ended = self.bench.scheduler.end(request, Outcome.CANCELLED)
        assert ended is not None
        self.read([ended])

    @precondition(lambda self: self.last_ended is not None)
    @rule()
    def cancel_what_has_ended(self) -> None:
        assert self.bench.scheduler.end(self.last_ended, Outcome.CANCELLED) is None

    @precondition(lambda self: any(request.blocks for request in self.questions))
    @rule()
    def preempt(self) -> None:
        self.bench.scheduler._preempt(self.bench.scheduler._youngest_owner())

    @rule(version=st.integers(0, 1))
    def load_adapter(self, version: int) -> None:
        self.version, self.adapter = version, adapter(version)

    @rule()
    def unload_adapter(self) -> None:
        self.version = self.adapter = None

    @invariant()
    def the_books_balance(self) -> None:
        scheduler = self.bench.scheduler
        scheduler.check_integrity()
        assert set(scheduler.live.values()) == set(self.questions)
        owned = {block for request in self.questions for block in request.blocks}
        assert len(owned) == scheduler.pool.used == NUM_BLOCKS - scheduler.pool.free - scheduler.pool.cached
        assert len(scheduler.running) <= MAX_RUNNING

    def teardown(self) -> None:
        """Whatever is left comes to its end, and leaves nothing behind."""
        for _ in range(3000):
            if not self.bench.scheduler.has_work:
                break
            self.read(self.bench.step())
        assert not self.questions, "requests that make no progress"
        self.the_books_balance()
        assert self.bench.scheduler.pool.used == 0

    def submit(self, question: Question) -> None:
        request = question.request(None if question.version is None else self.adapter)
        self.bench.scheduler.check_admissible(request)
        self.bench.scheduler.add(request)
        self.questions[request] = question

    def read(self, outputs: list[Output]) -> None:
        """Compare what has ended with the answer alone; a generation that was cancelled has the beginning of it."""
        for output in outputs:
            if not output.final:
                continue
            request = output.request
            question = self.questions.pop(request)  # a second end of one request fails here
            self.last_ended = request
            assert not request.blocks
            if isinstance(output, Embedded):
                expected = alone(question)
                np.testing.assert_allclose(output.vector, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
            elif isinstance(output, Produced):
                assert produced(request) == alone(question)
            elif isinstance(output, Ended) and isinstance(request, GenerateRequest):
                assert produced(request) == alone(question)[: request.produced]


def produced(request: Request) -> list[int]:
    assert isinstance(request, GenerateRequest)
    return request.tokens[request.prompt_length :]


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    phases=(
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ),  # to shrink a failure takes minutes: add Phase.shrink for that
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_the_adapters_change_answers() -> None:
    """Without that, serving one of them wrongly would go unnoticed."""
    questions = [Question(Kind.GENERATE, 20, 0, version, max_tokens=8) for version in (None, 0, 1)]
    assert len({tuple(alone(question)) for question in questions}) == 3
