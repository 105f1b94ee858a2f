"""Every answer is the one that the model's own code gives to the request alone, whatever shares the batch."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from orthrus_backend.adapters import Adapter
from orthrus_backend.detokenize import Detokenizer
from orthrus_backend.model import Backbone
from orthrus_backend.request import Outcome
from tests.engine.plain import plain_greedy, plain_hidden, plain_pool
from tests.engine.tiny import VOCABULARY, Bench, adapter, backbone, configs, embed, generate, layers, random_ids

FAMILIES = sorted(configs())


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_equal_the_models_own_code(family: str) -> None:
    model = backbone(family)
    texts = [random_ids(n, seed=n) for n in (1, 7, 16, 17, 40, 61)]
    prompts = [random_ids(n, seed=100 + n) for n in (1, 5, 15, 16, 33, 50)]
    embeds, generates = [embed(ids) for ids in texts], [generate(ids) for ids in prompts]
    bench = Bench(model, token_budget=24, chunk_size=9, max_running=8)
    results = bench.run([*embeds, *generates])
    assert "mixed" in bench.compositions
    for request, ids in zip(embeds, texts, strict=True):
        expected = plain_pool(plain_hidden(model, ids), "mean")
        np.testing.assert_allclose(results[request], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for request, ids in zip(generates, prompts, strict=True):
        assert results[request] == plain_greedy(model, ids, 12)


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 64, 0])
@pytest.mark.parametrize("pooling", ["mean", "weighted_mean", "cls", "last"])
def test_no_chunk_size_changes_a_vector(pooling: str, chunk: int) -> None:
    model = backbone()
    texts = [random_ids(n, seed=n) for n in (1, 16, 100, 128)]
    requests = [embed(ids, pooling) for ids in texts]
    bench = Bench(model, token_budget=max(chunk, 2) if chunk else 256, chunk_size=chunk, max_running=1)
    results = bench.run(requests)
    for request, ids in zip(requests, texts, strict=True):
        expected = plain_pool(plain_hidden(model, ids), pooling)
        np.testing.assert_allclose(results[request], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("company", ["nobody", "a text of 500 tokens", "eight decodes"])
def test_no_company_changes_a_vector(company: str) -> None:
    model = backbone()
    bench, ids = Bench(model, chunk_size=7), random_ids(60, seed=1)
    if company == "a text of 500 tokens":
        bench.scheduler.add(embed(random_ids(500, seed=2)))
        bench.step()
    elif company == "eight decodes":
        for n in range(8):
            bench.scheduler.add(generate(random_ids(5 + 9 * n, seed=n), 20))
        while len(bench.scheduler.running) < 8:
            bench.step()
    text = embed(ids)
    vector = bench.run([text])[text]
    expected = plain_pool(plain_hidden(model, ids), "mean")
    np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert ("mixed" in bench.compositions) == (company == "eight decodes")


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_block_borders_make_no_difference(length: int) -> None:
    model, bench = backbone(), Bench(backbone())
    ids = random_ids(length, seed=length)
    twice = [generate(ids), generate(ids)]
    results = bench.run(twice)
    assert results[twice[0]] == results[twice[1]] == plain_greedy(model, ids, 12)


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("length", [5, 8, 9, 40])
def test_a_sliding_window_slides_through_prefill_and_decode(length: int, chunk: int) -> None:
    model = backbone("mistral")
    ids = random_ids(length, seed=length)
    request = generate(ids, max_tokens=20)
    results = Bench(model, token_budget=chunk + 1, chunk_size=chunk, max_running=2).run([request])
    assert results[request] == plain_greedy(model, ids, 20)


def test_preempted_requests_end_as_if_nothing_had_happened() -> None:
    model = backbone()
    prompts = [random_ids(20, seed=n) for n in range(4)]
    requests = [
        generate(prompts[0], 40),
        generate(prompts[1], 40, temperature=0.8, seed=5),
        generate(prompts[2], 40, repetition_penalty=1.3),
        generate(prompts[3], 40),
    ]
    alone = []
    for request in requests:
        twin = generate(request.tokens, 40, seed=request.seed)
        twin.params = request.params
        alone.append(Bench(model).run([twin])[twin])
    bench = Bench(model, num_blocks=8)
    results = bench.run(requests)
    assert bench.scheduler.preemptions > 0
    assert [results[request] for request in requests] == alone


@pytest.mark.parametrize("produced", [1, 4, 5, 6])
def test_a_preemption_inside_a_stop_string_changes_no_text(produced: int) -> None:
    model, ids = backbone(), random_ids(20, seed=1)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    expected = words.decode(plain_greedy(model, ids, 9)).split()
    bench, request = Bench(model), generate(ids, 9)
    request.text = Detokenizer(words, [" ".join(expected[4:7])])
    bench.scheduler.add(request)
    pieces = []
    while request.produced < produced:
        pieces += bench.step()
    bench.scheduler._preempt(request)
    while bench.scheduler.has_work:
        pieces += bench.step()
    assert "".join(piece.text for piece in pieces) == " ".join(expected[:4]) + " "
    assert (request.outcome, request.produced) == (Outcome.STOP, 7)


def test_a_preempted_embedding_counts_every_token_once() -> None:
    model = backbone()
    ids = random_ids(100, seed=3)
    bench = Bench(model, num_blocks=8, token_budget=17, chunk_size=16, max_running=4)
    text = embed(ids)
    bench.scheduler.add(text)
    while text.computed < 48:
        bench.step()
    bench.scheduler._preempt(text)  # as a generation that needs its blocks would
    bench.scheduler.check_integrity()
    vector = None
    computed = 0
    while bench.scheduler.has_work:
        before = text.computed
        vector = next((output.vector for output in bench.step() if output.final), None)
        computed += text.computed - before
    assert computed == 100
    expected = plain_pool(plain_hidden(model, ids), "mean")
    np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_finite_and_close(dtype: torch.dtype) -> None:
    exact, half = backbone(), backbone(dtype=dtype)
    ids = random_ids(90, seed=9)
    expected = plain_pool(plain_hidden(exact, ids), "mean")
    request = embed(ids)
    vector = Bench(half).run([request, generate(ids)])[request]
    assert np.isfinite(vector).all()
    cosine = vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected)
    assert cosine > 0.999


def merged(version: int) -> Backbone:
    """The model of `backbone()` with an adapter added to its weights."""
    model = backbone()
    with torch.no_grad():
        for name, factors in layers(version).items():
            model.model.get_submodule(name).weight += factors.b @ factors.a
    return model


@pytest.mark.parametrize(("budget", "chunk"), [(40, 16), (512, 256)])
def test_two_adapters_and_the_base_share_a_batch_each_as_alone(budget: int, chunk: int) -> None:
    bench = Bench(backbone(), token_budget=budget, chunk_size=chunk)
    a, b, newer = Adapter("A", layers(0)), Adapter("B", layers(1)), Adapter("A", layers(1))
    ids = [random_ids(n, seed=n) for n in (30, 31, 70, 71)]
    generates = [generate(ids[0], adapter=a), generate(ids[1]), generate(ids[0]), generate(ids[1], adapter=b)]
    embeds = [embed(ids[2], adapter=b), embed(ids[3]), embed(ids[2]), embed(ids[3], adapter=a)]
    embeds.append(embed(ids[2], adapter=newer))  # beside the rows of the one that had its name
    results = bench.run([*generates, *embeds])
    if chunk == 256:
        assert bench.compositions == ["mixed", *["generate"] * 11]  # all began in the first step
    alone = {None: backbone(), a: merged(0), b: merged(1), newer: merged(1)}
    for request in generates:
        prompt = request.tokens[: request.prompt_length]
        assert results[request] == plain_greedy(alone[request.adapter], prompt, 12), request.adapter
    for text in embeds:
        expected = plain_pool(plain_hidden(alone[text.adapter], text.tokens), "mean")
        np.testing.assert_allclose(results[text], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    after = generate(ids[0])
    assert bench.run([after])[after] == results[generates[2]] != results[generates[0]]


def test_a_reloaded_adapter_shares_nothing_with_the_one_before() -> None:
    bench, ids = Bench(backbone(), num_blocks=8), random_ids(40, seed=1)
    answers = []
    for version in (0, 1, 0):
        loaded = adapter(version)  # always under the same name
        request, text = generate(ids, adapter=loaded), embed(ids, adapter=loaded)
        results = bench.run([request, text])
        alone = merged(version)
        assert results[request] == plain_greedy(alone, ids, 12)
        expected = plain_pool(plain_hidden(alone, ids), "mean")
        np.testing.assert_allclose(results[text], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        answers.append(results[request])
    assert answers[0] == answers[2] != answers[1]
