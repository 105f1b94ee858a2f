"""What requests begin with is computed once: answers are the same as alone, and nothing is shared that differs."""

from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest

from orthrus_backend.adapters import Adapter
from orthrus_backend.blocks import BlockPool
from orthrus_backend.model import Backbone
from orthrus_backend.params import PoolingMode
from orthrus_backend.prefix_cache import PrefixCache
from orthrus_backend.request import Kind, Request
from tests.engine.tiny import Bench, backbone, embed, generate, layers, random_ids

BLOCK = 16
INSTRUCTION = random_ids(40, seed=1)  # two blocks and a half


@cache
def model(family: str = "llama") -> Backbone:
    return backbone(family)


def hits(bench: Bench) -> dict[Kind, int]:
    assert bench.scheduler.prefixes is not None
    return bench.scheduler.prefixes.hits


def one_by_one(bench: Bench, requests: Sequence[Request]) -> list[Any]:
    return [bench.run([request])[request] for request in requests]


def alone(request: Request, family: str = "llama") -> Any:
    bench = Bench(model(family))
    answer = bench.run([request])[request]
    assert not any(hits(bench).values())
    return answer


def close(vector: Any, expected: Any) -> None:
    np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2"])
def test_a_prompt_goes_on_behind_what_an_earlier_one_began_with(family: str) -> None:
    bench = Bench(model(family))
    prompts = [[*INSTRUCTION, *random_ids(30, seed=seed)] for seed in (2, 3)]
    first, second = one_by_one(bench, [generate(prompt) for prompt in prompts])
    assert hits(bench) == {Kind.GENERATE: 2 * BLOCK, Kind.EMBED: 0}
    assert [first, second] == [alone(generate(prompt), family) for prompt in prompts]


def test_prompts_of_one_step_share_what_the_first_of_them_computes() -> None:
    """As the continuations of one prompt do that come together."""
    bench = Bench(model(), token_budget=300, chunk_size=16)
    prompt = [*INSTRUCTION, *random_ids(30, seed=2)]
    answers = bench.run([generate(prompt, 5) for _ in range(4)])
    assert hits(bench)[Kind.GENERATE] == 3 * 4 * BLOCK
    assert len(bench.compositions) == 5
    assert list(answers.values()) == [alone(generate(prompt, 5))] * 4


def test_a_conversation_goes_on_behind_its_own_answer() -> None:
    bench = Bench(model())
    prompt = random_ids(30, seed=2)
    (answer,) = one_by_one(bench, [generate(prompt, 40)])
    further = [*prompt, *answer, *random_ids(5, seed=3)]
    assert one_by_one(bench, [generate(further)]) == [alone(generate(further))]
    assert hits(bench)[Kind.GENERATE] == 69 // BLOCK * BLOCK  # the last token's keys were never needed


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_the_same_prompt_again_computes_its_last_token_at_least(length: int) -> None:
    bench = Bench(model())
    prompt = random_ids(length, seed=length)
    first, second = one_by_one(bench, [generate(prompt), generate(prompt)])
    assert first == second
    assert hits(bench)[Kind.GENERATE] == (length - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("pooling", get_args(PoolingMode))
@pytest.mark.parametrize("unpooled", [0, 5, 33])
@pytest.mark.parametrize("chunk_size", [16, 7, 0])
def test_the_third_text_with_a_beginning_gains(pooling: PoolingMode, unpooled: int, chunk_size: int) -> None:
    """The first is remembered, the second is computed whole and leaves blocks and state, the third goes on there."""
    bench = Bench(model(), chunk_size=chunk_size)
    for seed, expected_hits in ((2, 0), (3, 0), (4, 2 * BLOCK), (5, 4 * BLOCK)):
        text, twin = (embed([*INSTRUCTION, *random_ids(27, seed=seed)], pooling) for _ in range(2))
        text.unpooled = twin.unpooled = unpooled
        (vector,) = one_by_one(bench, [text])
        close(vector, alone(twin))
        assert hits(bench)[Kind.EMBED] == expected_hits


def test_texts_of_one_step_leave_their_beginning_as_well() -> None:
    bench = Bench(model(), token_budget=300, chunk_size=0)
    texts = [embed([*INSTRUCTION, *random_ids(9, seed=seed)]) for seed in range(2, 8)]
    vectors = bench.run(texts)
    assert len(bench.compositions) == 1
    later = embed([*INSTRUCTION, *random_ids(9, seed=9)])
    vectors |= bench.run([later])
    assert hits(bench)[Kind.EMBED] == 2 * BLOCK
    for text, vector in vectors.items():
        close(vector, alone(embed(text.tokens)))


def test_texts_that_share_nothing_take_no_blocks() -> None:
    bench = Bench(model(), token_budget=300, chunk_size=0)
    one_by_one(bench, [embed(random_ids(60, seed=seed)) for seed in range(4)])
    assert bench.scheduler.pool.free == bench.scheduler.pool.num_blocks


def test_nothing_is_shared_across_kinds_adapters_and_poolings() -> None:
    bench = Bench(model())
    text = random_ids(40, seed=2)
    a, b = Adapter("A", layers(0)), Adapter("A", layers(1))  # two versions under one name
    askings = [
        lambda: generate(text),
        lambda: generate(text, adapter=a),
        lambda: generate(text, adapter=b),
        lambda: embed(text),
        lambda: embed(text, adapter=a),
        lambda: embed(text, adapter=b),
        lambda: embed(text, "last"),
    ]
    for ask in [*askings, *askings]:
        request, twin = ask(), ask()
        answer = bench.run([request])[request]
        expected = alone(twin)
        close(np.asarray(answer), np.asarray(expected))
    assert hits(bench) == {Kind.GENERATE: 3 * 2 * BLOCK, Kind.EMBED: 0}  # an embedding's second time is what leaves it
    one_by_one(bench, [ask() for ask in askings])
    assert hits(bench)[Kind.EMBED] == 4 * 2 * BLOCK


def test_a_preempted_request_goes_on_behind_its_own_blocks() -> None:
    prompt = random_ids(30, seed=2)
    bench = Bench(model())
    request = generate(prompt, 30)
    bench.scheduler.add(request)
    for _ in range(10):
        bench.step()
    bench.scheduler._preempt(request)
    while bench.scheduler.has_work:
        bench.step()
    assert request.tokens[30:] == alone(generate(prompt, 30))
    assert hits(bench)[Kind.GENERATE] == 2 * BLOCK


def test_the_longest_unused_blocks_go_first_and_the_end_before_the_beginning() -> None:
    bench = Bench(model(), num_blocks=7)
    old, new, wide = (random_ids(3 * BLOCK + 1, seed=seed) for seed in (2, 3, 4))
    one_by_one(bench, [generate(old, 1), generate(new, 1)])  # 3 cached each
    one_by_one(bench, [generate(wide[: 2 * BLOCK], 1)])  # takes the end of the old
    one_by_one(bench, [generate(new, 1)])
    assert hits(bench)[Kind.GENERATE] == 3 * BLOCK
    one_by_one(bench, [generate(old[: BLOCK + 1], 1)])
    assert hits(bench)[Kind.GENERATE] == 4 * BLOCK


def test_blocks_that_are_shared_stay_until_the_last_reader_goes() -> None:
    bench = Bench(model(), num_blocks=8)
    prompt = random_ids(2 * BLOCK + 1, seed=2)
    one_by_one(bench, [generate(prompt, 1)])
    readers = [generate(prompt, 12, seed=seed) for seed in range(5)]  # 15 blocks, were they not shared
    answers = bench.run(readers)
    assert bench.scheduler.preemptions == 0
    assert list(answers.values()) == [alone(generate(prompt, 12))] * 5


def test_a_text_is_not_held_up_by_a_pool_too_small_to_share() -> None:
    bench = Bench(model(), num_blocks=2, token_budget=100, chunk_size=0)
    texts = [embed([*INSTRUCTION, *random_ids(20, seed=seed)]) for seed in (2, 3, 4)]
    for text, vector in zip(texts, one_by_one(bench, texts), strict=True):
        close(vector, alone(embed(text.tokens)))


def test_a_text_shares_nothing_while_an_elder_prompt_waits_for_blocks() -> None:
    """It would take the blocks that the prompt waits for; and it needs none."""
    bench = Bench(model(), num_blocks=8, chunk_size=32, patience=1)
    answers: dict[Request, Any] = {}
    requests: list[Request] = [generate(random_ids(16, seed=seed), 40) for seed in (1, 2)]  # soon 3 blocks each
    requests.append(generate(random_ids(100, seed=3), 2))
    requests += [embed([*INSTRUCTION[:20], seed + 3]) for seed in range(4)]
    for request in requests:
        bench.scheduler.add(request)
    while bench.scheduler.has_work:
        for output in bench.step():
            if output.final:
                answers[output.request] = output
    assert len(answers) == len(requests)


def test_what_was_seen_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orthrus_backend.prefix_cache._REMEMBERED", 4)
    cache = PrefixCache(BlockPool(64, BLOCK))
    texts = [embed(random_ids(3 * BLOCK, seed=seed)) for seed in range(4)]  # two beginnings each
    for text in [*texts, texts[0], texts[0]]:
        cache.reuse(text)
    assert texts[0].recurring == 2 * BLOCK
    assert len(cache._seen) == 4
    other = embed(texts[1].tokens)
    cache.reuse(other)
    assert not other.recurring


def test_a_key_that_was_lost_is_noticed() -> None:
    bench = Bench(model())
    one_by_one(bench, [generate(random_ids(40, seed=2))])
    assert bench.scheduler.prefixes is not None
    bench.scheduler.prefixes._keys.popitem()
    with pytest.raises(AssertionError):
        bench.scheduler.check_integrity()
