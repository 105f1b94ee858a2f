"""Steps of a given duration: the right number of tokens is found from what steps took, and nobody starves over it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import SchedulerSettings
from orthrus_backend.plan import Plan
from orthrus_backend.prefix_cache import PrefixCache
from orthrus_backend.request import Kind, Request
from orthrus_backend.scheduling.pace import Pace
from orthrus_backend.scheduling.scheduler import Scheduler
from tests.engine.test_scheduler import embed, generate, result_for

FIXED, PER_TOKEN = 0.05, 0.001  # seconds of the machine that is made up here


def machine(tokens: int) -> float:
    return FIXED + PER_TOKEN * tokens


def paced(step_time: float, num_blocks: int = 4096, prefixes: bool = False, **changes: object) -> Scheduler:
    values = {"token_budget": 512, "chunk_size": 64, "max_running": 8, "step_time": step_time} | changes
    pool = BlockPool(num_blocks, 4)
    return Scheduler(
        SchedulerSettings.model_validate(values),
        pool,
        whole_embeds=False,
        prefixes=PrefixCache(pool) if prefixes else None,
    )


class Clock:
    """Steps a scheduler on the machine."""

    def __init__(self, scheduler: Scheduler, slower: float = 1.0) -> None:
        self.scheduler = scheduler
        self.slower = slower
        self.now = 0.0

    def step(self) -> tuple[Plan, float]:
        plan = self.scheduler.schedule(self.now)
        seconds = self.slower * machine(plan.tokens)
        self.now += seconds
        self.scheduler.commit(plan, result_for(plan), self.now)
        self.scheduler.check_integrity()
        return plan, seconds


def test_the_line_through_steps_of_several_sizes_is_found() -> None:
    pace = Pace(0.2)
    assert pace.tokens() == float("inf")
    for tokens in (8, 300, 40, 500, 8, 8):
        pace.observe(tokens, machine(tokens))
    assert pace.tokens() == pytest.approx((0.2 - FIXED) / PER_TOKEN)


def test_noise_does_not_lead_astray() -> None:
    pace, draw = Pace(0.2), random.Random(0)
    for _ in range(200):
        tokens = draw.randint(1, 500)
        pace.observe(tokens, machine(tokens) * draw.uniform(0.8, 1.2))
    assert pace.tokens() == pytest.approx((0.2 - FIXED) / PER_TOKEN, rel=0.15)


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_steps_of_one_size_that_take_too_long_leave_nothing(seconds: float) -> None:
    pace = Pace(seconds)
    pace.observe(100, 1.0)
    assert pace.tokens() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("slower", [1.0, 2.0])
def test_steps_take_the_time_they_should_beside_running_generations(slower: float) -> None:
    """Four streams beside a flood of texts: after the first steps none lasts longer, and none is wastefully small."""
    sched = paced(0.2)
    clock = Clock(sched, slower)
    for _ in range(4):
        sched.add(generate(16, max_tokens=10_000))
    for _ in range(400):
        sched.add(embed(100))
    took = [clock.step()[1] for _ in range(60)]
    assert max(took) > 0.2 * slower  # before anything was known
    assert max(took[20:]) < 0.2 * 1.05
    assert min(took[20:]) > 0.2 * 0.8


def test_queues_get_something_where_the_weights_alone_take_longer() -> None:
    sched = paced(FIXED / 2)
    clock = Clock(sched)
    sched.add(generate(16, max_tokens=10_000))
    sched.add(embed(1000))
    for _ in range(1000 // 16 + 1):
        clock.step()
    assert [request.kind for request in sched.live.values()] == [Kind.GENERATE]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), step_time=st.sampled_from([1e-6, 0.07, 0.3]), prefixes=st.booleans())
def test_everything_ends_in_a_pool_that_is_too_small_for_most(seed: int, step_time: float, prefixes: bool) -> None:
    """Texts larger than the pool are computed whole, whatever the time: they need no blocks."""
    draw = random.Random(seed)
    sched = paced(step_time, num_blocks=6, prefixes=prefixes, token_budget=64, chunk_size=draw.choice([0, 40]))
    requests: list[Request] = []
    for _ in range(12):
        request = (
            embed(draw.randint(1, 40)) if draw.random() < 0.5 else generate(draw.randint(1, 16), draw.randint(1, 8))
        )
        request.tokens[:] = [draw.choice((7, 7, 8)) for _ in request.tokens]
        sched.check_admissible(request)
        sched.add(request)
        requests.append(request)
    clock = Clock(sched)
    for _ in range(2000):
        if not sched.has_work:
            break
        clock.step()
    assert all(request.outcome is not None for request in requests)
    assert sched.pool.used == 0


def test_a_text_that_one_turn_could_hold_waits_for_no_blocks() -> None:
    """Other than the step's time wants it: generations hold the blocks that its parts would need."""
    sched = paced(FIXED + 40 * PER_TOKEN, num_blocks=40, chunk_size=0)
    clock = Clock(sched)
    for _ in range(8):
        sched.add(generate(16, max_tokens=200))
    for _ in range(4):
        clock.step()
    text = embed(100)
    sched.add(text)
    for _ in range(3):
        clock.step()
    assert text.outcome is not None


def test_a_text_too_large_for_the_pool_is_one_slice() -> None:
    sched = paced(0.07, num_blocks=2)
    clock = Clock(sched)
    for _ in range(3):
        sched.add(embed(60))
    while sched.has_work:
        plan, _ = clock.step()
        assert {s.length for s in plan.slices} == {60}
