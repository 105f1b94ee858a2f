"""The scheduler's promises: equal to its obvious twin, within budget, in order, fair, and no block ever lost."""

import random
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import SchedulerSettings
from orthrus_backend.outputs import StepResult
from orthrus_backend.plan import Plan
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Outcome, Request, TokenLogprobs
from orthrus_backend.scheduling.policy import Backlog, IntraBatchScheduling
from orthrus_backend.scheduling.scheduler import Scheduler
from tests.engine.scheduler_twin import Job, Twin

END = 1  # the id that ends a generation


def embed(tokens: int) -> EmbedRequest:
    return EmbedRequest("", [7] * tokens, None, 0.0)


def generate(tokens: int, max_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(
        "", [7] * tokens, None, 0.0, prompt_length=tokens, max_tokens=max_tokens, stop_ids=frozenset([END])
    )


def scheduler(num_blocks: int = 64, block_size: int = 4, **changes: object) -> Scheduler:
    values = {"token_budget": 32, "chunk_size": 8, "max_running": 8} | changes
    return Scheduler(SchedulerSettings.model_validate(values), BlockPool(num_blocks, block_size))


def result_for(plan: Plan, ends: Set[int] = frozenset()) -> StepResult:
    sampled = [TokenLogprobs(END if s.request.order in ends else 7, 0.0, ()) for s in plan.samples]
    pools = [f"pool {s.request.order}" for s in plan.embeds]
    return StepResult(sampled, pools, [None] * len(pools))


def run_step(sched: Scheduler, ends: Set[int] = frozenset()) -> Plan:
    plan = sched.schedule(now=0.0)
    sched.commit(plan, result_for(plan, ends), now=0.0)
    sched.check_integrity()
    return plan


def lengths(plan: Plan) -> dict[int, int]:
    return {s.request.order: s.length for s in plan.slices}


@dataclass(frozen=True)
class Trace:
    """Everything random about a run, so that a failure prints itself."""

    seed: int
    policy: str

    def run(self) -> Scheduler:
        rng = random.Random(self.seed)
        block_size = rng.choice([1, 3, 4, 16])
        num_blocks = rng.randint(6, 24)
        capacity = num_blocks * block_size
        budget = rng.randint(4, 40)
        values = {"token_budget": budget, "chunk_size": rng.choice([0, 1, 3, 8, 64]), "policy": self.policy}
        values |= {"max_running": rng.randint(1, min(8, budget - 1)), "patience": rng.choice([1, 4, 1000])}
        sched = scheduler(num_blocks, block_size, **values)
        twin = Twin(
            budget,
            values["chunk_size"],
            values["max_running"],
            num_blocks,
            block_size,
            self.policy,
            values["patience"],
        )
        requests: list[Request] = []
        for _ in range(rng.randint(20, 60)):
            requests += [self._arrive(rng, sched, twin, capacity) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
            if requests and rng.random() < 0.1:
                victim = rng.choice(requests)
                sched.end(victim, Outcome.CANCELLED)
                twin.cancel(victim.order)
                sched.check_integrity()
            if sched.has_work:
                self._compare_step(rng, sched, twin)
        while sched.has_work:
            self._compare_step(rng, sched, twin)
        return sched

    def _arrive(self, rng: random.Random, sched: Scheduler, twin: Twin, capacity: int) -> Request:
        tokens = rng.randint(1, max(1, capacity * 2 // 3))
        request: Request
        if rng.random() < 0.5:
            request = embed(tokens)
        else:
            request = generate(tokens, max_tokens=rng.randint(1, max(1, capacity - tokens)))
        sched.check_admissible(request)
        sched.add(request)
        job = Job(request.order, request.kind.value, tokens)
        if isinstance(request, GenerateRequest):
            job.max_tokens, job.prompt = request.max_tokens, tokens
        twin.jobs.append(job)
        return request

    def _compare_step(self, rng: random.Random, sched: Scheduler, twin: Twin) -> None:
        ends = {order for order in sched.live if rng.random() < 0.1}
        plan = run_step(sched, ends)
        expected = twin.step()
        twin.commit(expected, ends)
        assert sorted((s.request.order, s.stop - s.length, s.length) for s in plan.slices) == expected
        assert sched.pool.free == twin.free()


@pytest.mark.parametrize("policy", ["ibs", "fcfs", "homogeneous"])
def test_equals_its_twin_on_seeded_traces(policy: str) -> None:
    preemptions = 0
    for seed in range(200):
        sched = Trace(seed, policy).run()
        assert sched.pool.used == 0
        preemptions += sched.preemptions
    assert preemptions > 100  # the traces do reach the hard part


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(["ibs", "fcfs", "homogeneous"]))
def test_equals_its_twin_on_any_trace(seed: int, policy: str) -> None:
    assert Trace(seed, policy).run().pool.used == 0


@settings(max_examples=100, deadline=None)
@given(
    embeds=st.lists(st.integers(1, 100), max_size=12),
    prompts=st.lists(st.integers(1, 100), max_size=12),
    policy=st.sampled_from(["ibs", "fcfs", "homogeneous"]),
)
def test_each_kind_starts_and_embeds_finish_in_order_of_arrival(
    embeds: list[int], prompts: list[int], policy: str
) -> None:
    sched = scheduler(policy=policy)
    for tokens in embeds:
        sched.add(embed(tokens))
    for tokens in prompts:
        sched.add(generate(tokens))
    started: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    finished: list[int] = []
    while sched.has_work:
        plan = run_step(sched)
        assert plan.tokens <= 32
        for s in sorted(plan.slices, key=lambda s: s.request.order):
            if s.start == 0 and s.request.order not in started[s.request.kind]:
                started[s.request.kind].append(s.request.order)
            if s.request.outcome is Outcome.EMBEDDED:
                finished.append(s.request.order)
    for orders in (*started.values(), finished):
        assert orders == sorted(orders)


@pytest.mark.parametrize(("embeds", "generates"), [(100, 100), (900, 100), (10, 990), (333, 667)])
def test_turns_follow_the_share_of_work_within_one(embeds: int, generates: int) -> None:
    policy = IntraBatchScheduling(patience=10**9)
    backlog = {Kind.EMBED: Backlog(embeds, 0), Kind.GENERATE: Backlog(generates, 1)}
    turns: Counter[Kind] = Counter()
    for turn in range(1, 2001):
        turns[policy.choose(backlog)] += 1
        assert abs(turns[Kind.EMBED] - turn * embeds / (embeds + generates)) <= 1


def test_credit_of_a_large_backlog_does_not_outlive_it() -> None:
    policy = IntraBatchScheduling(patience=10**9)
    big = {Kind.EMBED: Backlog(100_000, 0), Kind.GENERATE: Backlog(90_000, 1)}
    even = {Kind.EMBED: Backlog(10, 0), Kind.GENERATE: Backlog(10, 1)}
    policy.choose(big)
    assert Kind.EMBED in {policy.choose(even) for _ in range(3)}
    assert Kind.GENERATE in {policy.choose(even) for _ in range(3)}


def test_a_short_prompt_is_served_within_patience_beside_a_long_text() -> None:
    sched = scheduler(num_blocks=6000, patience=4)
    sched.add(embed(20_000))
    run_step(sched)
    hi = generate(2, max_tokens=1)
    sched.add(hi)
    for _ in range(5):
        run_step(sched)
    assert hi.outcome is Outcome.LENGTH


def test_a_short_text_is_served_within_patience_beside_a_long_prompt() -> None:
    sched = scheduler(num_blocks=6000, patience=4)
    sched.add(generate(20_000))
    run_step(sched)
    hi = embed(2)
    sched.add(hi)
    for _ in range(5):
        run_step(sched)
    assert hi.outcome is Outcome.EMBEDDED


def test_a_running_generation_gets_a_token_in_every_step_whatever_is_queued() -> None:
    sched = scheduler()
    first = generate(4, max_tokens=50)
    sched.add(first)
    run_step(sched)
    for _ in range(100):
        sched.add(embed(20))
    sched.add(generate(100, max_tokens=1))
    for step in range(20):
        run_step(sched)
        assert first.produced == step + 2


def test_a_text_that_needs_many_blocks_gets_them_though_short_prompts_keep_coming() -> None:
    """Of 16 blocks it needs 10, and the prompts would always take those that come free."""
    sched = scheduler(num_blocks=16, block_size=16, token_budget=64, chunk_size=16, max_running=16)
    text = embed(150)
    for step in range(120):
        while len(sched.live) < 12:
            sched.add(generate(20, max_tokens=10))
        if step == 20:
            sched.add(text)
        run_step(sched)
    assert text.outcome is Outcome.EMBEDDED


def test_a_freed_slot_is_used_in_the_next_step() -> None:
    sched = scheduler(max_running=4)
    requests = [generate(4, max_tokens=50) for _ in range(5)]
    for request in requests:
        sched.add(request)
    assert len(run_step(sched).slices) == 4
    assert requests[4].order not in lengths(run_step(sched))
    sched.end(requests[0], Outcome.CANCELLED)
    assert requests[4].order in lengths(run_step(sched))


def test_a_text_that_fits_one_chunk_needs_no_block() -> None:
    sched = scheduler(num_blocks=1, block_size=1)
    short = embed(8)
    sched.check_admissible(short)
    sched.add(short)
    plan = sched.schedule(0.0)
    assert lengths(plan) == {0: 8}
    assert sched.pool.used == 0


def test_preemption_forgets_the_pooling_state() -> None:
    sched = scheduler(num_blocks=8, block_size=4, token_budget=3, chunk_size=8, max_running=2)
    eldest = generate(2, max_tokens=30)
    sched.add(eldest)
    run_step(sched)
    long_text = embed(24)
    sched.add(long_text)
    while sched.preemptions == 0:
        assert long_text.outcome is None
        computed = long_text.computed
        plan = sched.schedule(0.0)
        if sched.preemptions == 0:
            sched.commit(plan, result_for(plan), 0.0)
    assert computed > 16
    assert (long_text.computed, long_text.pool, long_text.blocks) == (0, None, [])
    sched.commit(plan, result_for(plan), 0.0)
    while sched.has_work:
        run_step(sched)
    assert long_text.outcome is Outcome.EMBEDDED


@pytest.mark.parametrize(("tokens", "max_tokens"), [(129, 1), (120, 100)])
def test_what_never_fits_is_refused_and_the_next_one_runs(tokens: int, max_tokens: int) -> None:
    sched = scheduler(num_blocks=8, block_size=16)
    with pytest.raises(ValueError, match=f"prompt {tokens} .*max_tokens {max_tokens}.*limit is 128"):
        sched.check_admissible(generate(tokens, max_tokens))
    sched.check_admissible(generate(128, 1))
    small = generate(5, 1)
    sched.add(small)
    run_step(sched)
    assert small.outcome is Outcome.LENGTH


def test_a_text_that_never_fits_is_refused_and_the_next_one_runs() -> None:
    sched = scheduler(num_blocks=8, block_size=16)
    with pytest.raises(ValueError, match=r"prompt 129 needs .* the limit is 128"):
        sched.check_admissible(embed(129))
    for text in (embed(128), embed(5)):
        sched.check_admissible(text)
        sched.add(text)
    while sched.has_work:
        run_step(sched)
    assert text.outcome is Outcome.EMBEDDED


def test_cancelling_gives_all_blocks_back_wherever_a_request_stands() -> None:
    sched = scheduler(max_running=2)
    decoding, chunked, prefilling = generate(4, 50), embed(200), generate(60, 5)
    waiting = [embed(20), generate(20, 5)]
    requests = [decoding, chunked, prefilling, *waiting]
    for request in requests:
        sched.add(request)
    run_step(sched)
    run_step(sched)
    assert decoding.produced
    assert 0 < chunked.computed < 200
    assert 0 < prefilling.computed < 60
    assert not any(request.computed for request in waiting)
    for request in (*waiting, decoding, prefilling, chunked):
        assert sched.end(request, Outcome.CANCELLED) is not None
        assert sched.end(request, Outcome.CANCELLED) is None
        sched.check_integrity()
    assert sched.pool.used == 0
    assert not sched.has_work


def test_expected_output_counts_where_asked_for() -> None:
    sched = scheduler(count_expected_output=True)
    sched.add(generate(10, max_tokens=90))
    assert sched.queues[Kind.GENERATE].tokens == 100
    run_step(sched)
    assert sched.queues[Kind.GENERATE].tokens == 0


@pytest.mark.parametrize("policy", ["ibs", "fcfs"])
def test_what_cannot_enter_holds_up_later_arrivals_only_in_their_order(policy: str) -> None:
    sched = scheduler(policy=policy, max_running=1)
    first, second, text = generate(4, max_tokens=3), generate(4, max_tokens=1), embed(4)
    for request in (first, second, text):
        sched.add(request)
    for _ in range(3):
        assert text.outcome is (None if policy == "fcfs" or not first.produced else Outcome.EMBEDDED)
        run_step(sched)
    assert first.outcome is Outcome.LENGTH
    run_step(sched)
    assert (second.outcome, text.outcome) == (Outcome.LENGTH, Outcome.EMBEDDED)
