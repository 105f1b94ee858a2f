"""The sampler against a plain twin that treats one row at a time, and against what people trip over."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orthrus_backend.params import SamplingParams
from orthrus_backend.request import GenerateRequest
from orthrus_backend.sampling import Sampler

VOCAB = 40


def request(
    prompt: Sequence[int] = (1, 2, 3),
    output: Sequence[int] = (),
    *,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
    bad_words: Sequence[tuple[int, ...]] = (),
    **params: object,
) -> GenerateRequest:
    parsed = SamplingParams.from_mapping(params)
    return GenerateRequest(
        id="g",
        tokens=[*prompt, *output],
        adapter=None,
        arrival=0.0,
        params=parsed,
        prompt_length=len(prompt),
        stop_ids=frozenset(stop_ids),
        bad_words=tuple(bad_words),
        seed=seed,
        needs_logprobs=parsed.logprobs is not None,
    )


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def choose(logits: Tensor, *requests: GenerateRequest, vocab: int | None = None) -> list[int]:
    return [s.token for s in Sampler(vocab or logits.shape[1]).sample(logits, requests)]


def twin_scores(logits: Tensor, r: GenerateRequest) -> np.ndarray:
    """Bans, bias and penalties, written as one reads them: [V]."""
    scores = logits.double().numpy().copy()
    output = r.tokens[r.prompt_length :]
    for word in r.bad_words:
        if len(word) == 1 or (len(output) >= len(word) - 1 and tuple(output[-(len(word) - 1) :]) == word[:-1]):
            scores[word[-1]] = -np.inf
    if len(output) < r.params.min_tokens:
        scores[list(r.stop_ids)] = -np.inf
    for token, bias in r.params.logit_bias.items():
        scores[token] += bias
    for token in set(r.tokens):
        penalty = r.params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token, count in Counter(output).items():
        scores[token] -= r.params.frequency_penalty * count + r.params.presence_penalty
    return scores


def twin_distribution(scores: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, float]:
    """Probabilities that are left, [V], and how near the nearest yes-or-no was to the other answer."""
    weights = np.exp((scores - scores.max()) / params.temperature)
    margins = [1.0]
    if params.min_p > 0:
        margins.append(np.abs(weights - params.min_p).min())
        weights[weights < params.min_p] = 0
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    kept = order[: params.top_k] if params.top_k > 0 else order
    mass, before, final = weights[kept].sum(), 0.0, np.zeros_like(weights)
    for token in kept:
        if params.top_p < 1 and weights[token]:
            margins.append(abs(before / mass - params.top_p))
        if before < params.top_p * mass or params.top_p == 1:
            final[token] = weights[token]
        before += weights[token]
    return final / final.sum(), min(margins)


def twin_token(scores: np.ndarray, r: GenerateRequest) -> tuple[int, float]:
    """The token that the documented random number picks, and how near it was to another one."""
    if r.params.greedy:
        return int(scores.argmax()), 1.0
    probabilities, margin = twin_distribution(scores, r.params)
    bits = np.random.Philox(key=r.seed % 2**64, counter=len(r.tokens)).random_raw()
    uniform, reached = (bits >> 11) / 2**53, np.cumsum(probabilities)
    return int((reached <= uniform).sum()), min(margin, np.abs(reached - uniform).min())


tokens = st.integers(0, VOCAB - 1)


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    off = draw(st.booleans())  # rows without any edit take another path
    return request(
        draw(st.lists(tokens, min_size=1, max_size=6)),
        draw(st.lists(tokens, max_size=6)),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        stop_ids=draw(st.lists(tokens, max_size=3)),
        bad_words=[]
        if off
        else [tuple(w) for w in draw(st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=3))],
        temperature=draw(st.sampled_from([0, 0.5, 1, 2])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 7, VOCAB, VOCAB + 5])),
        top_p=draw(st.sampled_from([1, 0.9, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0, 0.02, 0.3, 1])),
        min_tokens=0 if off else draw(st.integers(0, 4)),
        repetition_penalty=1 if off else draw(st.sampled_from([1, 0.7, 1.3])),
        presence_penalty=0 if off else draw(st.sampled_from([0, -1.5, 0.7])),
        frequency_penalty=0 if off else draw(st.sampled_from([0, -0.4, 1.1])),
        logit_bias={} if off else draw(st.dictionaries(tokens, st.sampled_from([-100, -3, 2, 100]), max_size=4)),
    )


@given(batch=st.lists(requests(), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=300)
def test_any_batch_equals_the_twin_row_by_row(batch: list[GenerateRequest], seed: int) -> None:
    logits = random_logits(len(batch), VOCAB + 3, seed)
    got = choose(logits, *batch, vocab=VOCAB)
    for row, r in enumerate(batch):
        want, margin = twin_token(twin_scores(logits[row, :VOCAB], r), r)
        assert margin < 1e-5 or got[row] == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [5, 256, 300, 1000])
def test_greedy_is_the_first_maximum(dtype: torch.dtype, vocab: int) -> None:
    logits = random_logits(7, vocab).round().to(dtype)  # rounded: many ties
    expected = logits.float().numpy().argmax(1).tolist()
    assert choose(logits, *[request(temperature=0)] * 7) == expected


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-5, 1e-4, 1e-3])
def test_cold_rows_are_greedy_beside_a_drawn_row(temperature: float) -> None:
    logits = random_logits(2)
    logits[0, 5], logits[0, 30] = 20 - 2**-19, 20  # neighbours in float32: a draw would take either
    for seed in range(8):
        cold, drawn = request(temperature=temperature, seed=seed), request(top_p=0.5, seed=seed, logprobs=3)
        first, second = Sampler(VOCAB).sample(logits, [cold, drawn])
        assert first.token == choose(logits[:1], cold)[0] == 30
        assert second.token == choose(logits[1:], drawn)[0]
        assert all(math.isfinite(value) for value in (second.logprob, *(value for _, value in second.top)))


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.2}])
def test_a_seed_gives_the_same_token_in_any_company(params: dict[str, float]) -> None:
    logits = random_logits(4, 1000)
    row = logits[:1]
    mine = request(seed=42, **params)
    alone = choose(row, mine)
    others = [request(seed=7), request(seed=9, top_p=0.3), request(temperature=0)]
    assert choose(torch.cat([logits[1:2], row, row, logits[2:]]), others[0], mine, mine, *others[1:])[1:3] == alone * 2
    assert choose(torch.cat([row, logits[1:]]), mine, *others)[:1] == alone
    assert choose(row, request(seed=42, **params)) == alone  # as rebuilt after a preemption


def test_positions_and_seeds_draw_apart() -> None:
    logits = torch.zeros(1, 1000)
    later = [choose(logits, request(output=[0] * n, seed=1))[0] for n in range(50)]
    seeds = [choose(logits, request(seed=s))[0] for s in range(50)]
    assert len(set(later)) > 40
    assert len(set(seeds)) > 40


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.5}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 8, "top_p": 0.7, "min_p": 0.02}],
)
def test_draws_follow_the_distribution(params: dict[str, float]) -> None:
    draws, vocab = 20_000, 300  # more than one block
    logits = random_logits(1, vocab, seed=3)
    logits[0, 200:] -= 4
    batch = [request(seed=seed, **params) for seed in range(draws)]
    counts = np.bincount(choose(logits.expand(draws, -1), *batch), minlength=vocab)
    expected, _ = twin_distribution(logits[0].double().numpy(), batch[0].params)
    assert not counts[expected == 0].any()
    common = expected * draws > 5
    parts = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum()) * draws
    parts, wanted = parts[wanted > 0], wanted[wanted > 0]
    chi_square = ((parts - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations; the seeds are fixed


@pytest.mark.parametrize("flatness", [0.05, 1.0])
@pytest.mark.parametrize(
    "params", [{"top_p": 0.95}, {"top_k": 700, "top_p": 0.9}, {"top_k": 300}, {"min_p": 0.01, "top_p": 0.9}]
)
def test_few_candidates_lead_to_the_token_of_a_full_sort(
    flatness: float, params: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = (random_logits(20, 5000) * flatness).bfloat16()  # many ties
    batch = [request(seed=seed, **params) for seed in range(20)]
    monkeypatch.setattr("orthrus_backend.sampling.CANDIDATES", 5000)
    full = choose(logits, *batch)
    for candidates in (2, 16, 256):
        monkeypatch.setattr("orthrus_backend.sampling.CANDIDATES", candidates)
        assert choose(logits, *batch) == full


def test_ties_rank_by_id() -> None:
    logits = torch.zeros(1, 1000)
    assert choose(logits, request(top_k=1, seed=5)) == [0]
    assert {choose(logits, request(top_k=3, seed=s))[0] for s in range(40)} == {0, 1, 2}
    assert {choose(logits, request(top_p=0.002, seed=s))[0] for s in range(40)} == {0, 1}


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 50, "logprobs": 20}])
def test_a_padded_vocabulary_is_never_chosen(params: dict[str, float]) -> None:
    logits = torch.zeros(1, 64)
    logits[0, 50:] = 100.0
    for seed in range(30):
        (chosen,) = Sampler(50).sample(logits, [request(seed=seed, prompt=[1, 60], repetition_penalty=1.1, **params)])
        assert chosen.token < 50
        assert all(token < 50 for token, _ in chosen.top)


def test_penalties_count_prompt_and_output_as_they_should() -> None:
    logits = torch.tensor([[1.0, 1.1, 1.2, 0.0]])
    in_prompt, in_output = {"prompt": [2], "output": [0]}, {"prompt": [0], "output": [2]}
    assert choose(logits, request(**in_prompt, temperature=0, repetition_penalty=2)) == [1]
    assert choose(logits, request(**in_prompt, temperature=0, presence_penalty=1)) == [2]
    assert choose(logits, request(**in_output, temperature=0, presence_penalty=1)) == [1]
    assert choose(logits, request(**in_prompt, temperature=0, frequency_penalty=1)) == [2]
    assert choose(logits, request(**in_output, temperature=0, frequency_penalty=1)) == [1]
    assert choose(logits, request(**in_output, temperature=0, repetition_penalty=2)) == [1]
    twice = {"prompt": [0], "output": [2, 2]}  # 1.2 - 0.08 is above 1.1, 1.2 - 2 * 0.08 is not
    assert choose(logits, request(**twice, temperature=0, presence_penalty=0.08)) == [2]
    assert choose(logits, request(**twice, temperature=0, frequency_penalty=0.08)) == [1]


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 2}, {"presence_penalty": 1}, {"frequency_penalty": 1}])
def test_penalties_are_those_of_the_rows_own_tokens(penalty: dict[str, float]) -> None:
    logits = torch.tensor([[1.2, 1.0, 1.1]]).repeat(3, 1)  # id 0, as a padding would be, is the likeliest
    long, short, other = ([1], [1] * 9), ([2], [2]), ([0], [0, 0])
    rows = [request(*tokens, temperature=0, **penalty) for tokens in (long, short, other)]
    assert choose(logits, *rows) == [0, 0, 2]


def test_bad_words_are_banned_only_after_their_beginning() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert choose(logits, request(temperature=0, bad_words=[(3,)])) == [2]
    assert choose(logits, request(output=[1, 2], temperature=0, bad_words=[(1, 2, 3)])) == [2]
    assert choose(logits, request(output=[2, 1], temperature=0, bad_words=[(1, 2, 3)])) == [3]
    assert choose(logits, request(prompt=[1, 2], temperature=0, bad_words=[(1, 2, 3)])) == [3]  # not the prompt


def test_stop_ids_wait_for_min_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    early = [choose(logits, request(output=[0] * n, temperature=0, stop_ids=[3, 2], min_tokens=2))[0] for n in range(4)]
    assert early == [1, 1, 3, 3]


def test_logprobs_are_those_of_the_untouched_logits() -> None:
    logits = random_logits(3, 1000).bfloat16()
    edited = request(seed=3, logprobs=4, temperature=0.3, top_k=2, logit_bias={5: 50}, repetition_penalty=1.5)
    results = Sampler(1000).sample(logits, [request(temperature=0), edited, request(temperature=0, logprobs=0)])
    expected = logits.float().log_softmax(-1)
    assert (results[0].logprob, results[0].top) == (0.0, ())
    assert results[1].token == 5
    assert results[1].logprob == pytest.approx(float(expected[1, 5]), abs=1e-5)
    ranking = sorted(range(1000), key=lambda token: (-float(expected[1, token]), token))[:4]
    assert [token for token, _ in results[1].top] == ranking
    assert [value for _, value in results[1].top] == pytest.approx(expected[1, ranking].tolist(), abs=1e-5)
    assert results[2].logprob == pytest.approx(float(expected[2].max()), abs=1e-5)
    assert results[2].top == ()


BROKEN = {
    "nan": [math.nan] * VOCAB,
    "one nan": [math.nan, *[1.0] * (VOCAB - 1)],
    "all masked": [-math.inf] * VOCAB,
    "infinite": [math.inf, 0.0, -math.inf, math.nan, *[1.0] * (VOCAB - 4)],
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.9, "min_p": 0.1}, {"repetition_penalty": 0.01}])
def test_broken_logits_give_a_token_and_finite_numbers(name: str, params: dict[str, float]) -> None:
    logits = torch.cat([torch.tensor([BROKEN[name]]), random_logits(1)])
    broken, healthy = Sampler(VOCAB).sample(
        logits, [request(logprobs=20, **params), request(logprobs=3, temperature=0)]
    )
    assert 0 <= broken.token < VOCAB
    assert broken.token != 0 or name != "one nan"
    assert all(math.isfinite(value) for _, value in broken.top)
    assert math.isfinite(broken.logprob)
    assert healthy.token == logits[1].argmax()


@pytest.mark.parametrize("temperature", [0, 1])
def test_bans_that_leave_nothing_are_dropped(temperature: float) -> None:
    logits = torch.tensor([[0.0, 30.0, 1.0]])
    everything = [(0,), (1,), (2,)]
    assert choose(logits, request(temperature=temperature, bad_words=everything)) == [1]


def test_logits_are_left_alone() -> None:
    logits = random_logits(2)
    before = logits.clone()
    choose(logits, request(logit_bias={1: 5}), request(temperature=0, bad_words=[(1,)]))
    assert torch.equal(logits, before)


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(VOCAB).sample(random_logits(0), []) == []
