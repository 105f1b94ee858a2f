"""An embedding model beside the generator: encoders see texts whole, both models get the answers they give alone."""

import numpy as np
import pytest
import torch

from orthrus_backend.model import Backbone
from orthrus_backend.request import Outcome
from orthrus_backend.self_check import self_check
from tests.engine.plain import plain_greedy, plain_hidden, plain_pool
from tests.engine.tiny import Bench, attention, backbone, embed, encoder, encoder_configs, generate, random_ids

ENCODERS = sorted(set(encoder_configs()) - {"qwen3"})


@pytest.mark.parametrize("family", sorted(encoder_configs()))
def test_texts_and_prompts_share_steps_but_not_models(family: str) -> None:
    generator, embedder = backbone(), encoder(family)
    texts = [random_ids(n, seed=n) for n in (1, 7, 17, 40, 41)]
    prompts = [random_ids(n, seed=100 + n) for n in (5, 16, 33)]
    embeds, generates = [embed(ids) for ids in texts], [generate(ids) for ids in prompts]
    bench = Bench(generator, embedder=embedder, token_budget=56, chunk_size=9, max_running=8)
    results = bench.run([*embeds, *generates])
    assert "mixed" in bench.compositions
    for request, ids in zip(embeds, texts, strict=True):
        expected = plain_pool(plain_hidden(embedder, ids), "mean")
        np.testing.assert_allclose(results[request], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for request, ids in zip(generates, prompts, strict=True):
        assert results[request] == plain_greedy(generator, ids, 12)


@pytest.mark.parametrize("family", sorted(encoder_configs()))
def test_the_self_check_passes(family: str) -> None:
    model = encoder(family)
    assert self_check(model, attention(model), model.layer_shapes()) < 1e-5


def test_a_token_position_that_is_off_by_one_does_not_pass_the_self_check() -> None:
    model = encoder("xlm-roberta")
    model._first_position -= 1
    with pytest.raises(ValueError, match="other results in packed batches"):
        self_check(model, attention(model), model.layer_shapes())


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_keeps_nothing_and_is_never_cut(family: str) -> None:
    bench = Bench(backbone(), num_blocks=1, embedder=encoder(family), token_budget=50, chunk_size=4, max_running=8)
    request = embed(random_ids(42, 1))
    bench.scheduler.check_admissible(request)
    bench.scheduler.add(request)
    plan = bench.scheduler.schedule(0.0)
    assert [s.length for s in plan.slices] == [42]
    assert bench.scheduler.pool.used == 0
    with pytest.raises(ValueError, match=r"43 tokens does not fit one step.*limit is 42"):
        bench.scheduler.check_admissible(embed(random_ids(43, 1)))


def test_a_text_as_long_as_a_step_allows_is_served_beside_a_backlog_of_prompts() -> None:
    bench = Bench(backbone(), embedder=encoder("bert"), token_budget=50, chunk_size=16, max_running=8)
    for n in range(20):
        bench.scheduler.add(generate(random_ids(60, n), 2))
    text = embed(random_ids(42, 1))
    bench.scheduler.add(text)
    for _ in range(6):
        bench.step()
    assert text.outcome is Outcome.EMBEDDED


def test_a_model_that_is_causal_in_part_only_is_refused() -> None:
    model = backbone()
    model.model.base_model.layers[0].self_attn.is_causal = False
    with pytest.raises(ValueError, match="some are not"):
        Backbone(model.model, torch.device("cpu")).layer_shapes()
