"""Every family: all logits of packed, chunked, mixed steps are those of its own eager code, one request at a time."""

from collections.abc import Sequence

import pytest
import torch
from transformers import models as families

from orthrus_backend.attention import hook
from orthrus_backend.attention.reference import ReferenceAttention
from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.batch import Batch
from orthrus_backend.kv_cache import KVCache
from orthrus_backend.model import Backbone
from orthrus_backend.request import Request
from orthrus_backend.self_check import self_check
from tests.engine.tiny import Bench, attention, backbone, configs, embed, from_config, generate, random_ids, sizes

FAMILIES = sorted(configs())
TEXTS = (1, 7, 16, 17, 40, 61)  # tokens
PROMPTS = (1, 5, 15, 16, 33, 50)


def packed_logits(model: Backbone, requests: Sequence[Request]) -> dict[Request, torch.Tensor]:
    """Logits of every computed token [n, V], of requests that run together in small chunks."""
    bench = Bench(model, token_budget=24, chunk_size=9, max_running=8)
    rows: dict[Request, list[torch.Tensor]] = {request: [] for request in requests}
    for request in requests:
        bench.scheduler.add(request)
    compute, passes = model.hidden, []
    model.hidden = lambda *arguments: passes.append(compute(*arguments)) or passes[-1]
    try:
        while bench.scheduler.has_work:
            plan = bench.scheduler.schedule(0.0)
            bench.compositions.append(plan.composition)
            bench.scheduler.commit(plan, bench.runner.run(plan), 0.0)
            for s, hidden in zip(plan.slices, passes[-1].split([s.length for s in plan.slices]), strict=True):
                rows[s.request].append(hidden)
    finally:
        model.hidden = compute
    assert "mixed" in bench.compositions
    return {request: model.logits(torch.cat(parts)) for request, parts in rows.items()}


@torch.inference_mode()
def eager_logits(model: Backbone, ids: Sequence[int]) -> torch.Tensor:
    """Logits [n, V] of the model's own code."""
    model.model.set_attn_implementation("eager")
    logits = model.model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    model.model.set_attn_implementation(hook.NAME)
    return logits


def requests_of_both_kinds() -> list[Request]:
    return [
        *[embed(random_ids(n, seed=n)) for n in TEXTS],
        *[generate(random_ids(n, seed=100 + n)) for n in PROMPTS],
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_all_logits_of_mixed_steps_equal_eager_ones(family: str) -> None:
    model = backbone(family)
    for request, logits in packed_logits(model, requests_of_both_kinds()).items():
        expected = eager_logits(model, request.tokens[: len(logits)])
        assert len(logits) == request.computed
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_finite_and_close(family: str, dtype: torch.dtype) -> None:
    exact, half = backbone(family), backbone(family, dtype)
    for request, logits in packed_logits(half, requests_of_both_kinds()).items():
        expected = eager_logits(exact, request.tokens[: len(logits)])
        assert logits.dtype == dtype
        assert logits.isfinite().all()
        cosines = torch.nn.functional.cosine_similarity(logits.float(), expected, dim=1)
        assert cosines.min() > 0.98
        assert cosines.mean() > 0.998


@pytest.mark.parametrize("family", FAMILIES)
def test_the_self_check_lets_a_right_model_pass(family: str) -> None:
    model = backbone(family)
    assert self_check(model, attention(model), model.layer_shapes()) < 1e-5


class _Wrong(ReferenceAttention):
    """Attention with one fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def begin(self, batch: Batch, cache: KVCache) -> "_WrongStep":
        return _WrongStep(super().begin(batch, cache), self._fault)


class _WrongStep:
    def __init__(self, step: object, fault: str) -> None:
        self._step, self._fault = step, fault

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        if self._fault == "window":
            spec = AttentionSpec(spec.scale, (spec.window or 40) - 1, spec.softcap)
        elif self._fault == "scale":
            spec = AttentionSpec(spec.scale * 1.1, spec.window, spec.softcap)
        elif self._fault == "no cap":
            spec = AttentionSpec(spec.scale, spec.window)
        out = self._step.attend(layer, q, k, v, spec)
        return out.roll(1, dims=0) if self._fault == "neighbour" else out


@pytest.mark.parametrize(
    ("family", "fault"),
    [("mistral", "window"), ("llama", "window"), ("llama", "scale"), ("gemma2", "no cap"), ("llama", "neighbour")],
)
def test_the_self_check_refuses_another_result(family: str, fault: str) -> None:
    model = backbone(family)
    with pytest.raises(ValueError, match=r"gives other results in packed batches than alone .*difference"):
        self_check(model, _Wrong(fault), model.layer_shapes())


def test_the_self_check_refuses_positions_that_ignore_the_packing() -> None:
    model = backbone()
    compute = model.hidden
    model.hidden = lambda ids, positions, step: compute(ids, torch.arange(len(ids)), step)
    with pytest.raises(ValueError, match="gives other results in packed batches"):
        self_check(model, attention(model), model.layer_shapes())


@pytest.mark.parametrize("factor", ["logit_scale", "logits_scaling", "final_logit_softcapping"])
def test_the_self_check_refuses_a_head_that_is_not_the_models_own(factor: str) -> None:
    model = backbone()
    setattr(model.config, factor, 3.0)  # which this family's own code does not know
    with pytest.raises(ValueError, match="gives other results"):
        self_check(model, attention(model), model.layer_shapes())


def longrope() -> dict[str, object]:
    factors = [1.0 + n / 8 for n in range(8)]
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": factors,
        "long_factor": [2 * factor for factor in factors],
        "original_max_position_embeddings": 64,
    }


REFUSED = {
    "dynamic": (
        lambda: families.LlamaConfig(
            **sizes(), rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        ),
        "llama with 'dynamic' position embedding",
    ),
    "longrope": (
        lambda: families.Phi3Config(**sizes(), rope_parameters=longrope()),
        "phi3 with 'longrope' position embedding",
    ),
    "linear attention": (
        lambda: families.Qwen3NextConfig(
            **sizes(),
            head_dim=16,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            num_experts=0,
        ),
        "qwen3_next has layers of type linear_attention",
    ),
    "convolution": (
        lambda: families.Lfm2Config(**sizes(), layer_types=["conv", "full_attention"]),
        "lfm2 has layers of type conv",
    ),
    "MLA": (
        lambda: families.DeepseekV3Config(
            **sizes(),
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            q_lora_rank=16,
            kv_lora_rank=16,
        ),
        "deepseek_v3 uses multi-head latent attention",
    ),
    "state space beside attention": (
        lambda: families.FalconH1Config(
            **sizes(), mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1
        ),
        "falcon_h1 has layers of type hybrid",
    ),
    "state space": (
        lambda: families.MambaConfig(vocab_size=199, hidden_size=64, num_hidden_layers=2, state_size=8),
        "mamba has layers of type linear_attention",
    ),
    "attention in some layers": (
        lambda: families.JambaConfig(**sizes(), num_experts=1, attn_layer_period=2, attn_layer_offset=1),
        "jamba has layers of type linear_attention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_with_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        from_config(make())


def test_tied_and_untied_heads_are_what_they_say() -> None:
    for family in FAMILIES:
        model = backbone(family).model
        same = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert same == bool(model.config.tie_word_embeddings), family
    tied = {bool(config.tie_word_embeddings) for config in configs().values()}
    assert tied == {True, False}
