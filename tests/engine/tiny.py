"""Small random models of many families, and the engine's parts put together without threads."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig
from transformers import models as families

from orthrus_backend.acceleration import Computation, accelerate
from orthrus_backend.adapters import Adapter, Factors
from orthrus_backend.attention import hook
from orthrus_backend.attention.backend import AttentionBackend
from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import SchedulerSettings
from orthrus_backend.engine import StepRunner
from orthrus_backend.kv_cache import KVCache
from orthrus_backend.model import Backbone
from orthrus_backend.outputs import Embedded, Output, Produced
from orthrus_backend.params import PoolingMode, SamplingParams
from orthrus_backend.prefix_cache import PrefixCache
from orthrus_backend.request import EmbedRequest, GenerateRequest, Request
from orthrus_backend.runner import Runner
from orthrus_backend.sampling import Sampler
from orthrus_backend.scheduling.scheduler import Scheduler
from orthrus_backend.split_runner import SplitRunner

VOCABULARY = 199
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "intermediate_size": 96, "num_key_value_heads": 2}
# Trained for 32 positions, so that tests of a hundred tokens go well past them.
_ROPE: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 32},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
_HALF_ROTARY: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


def configs() -> dict[str, PretrainedConfig]:
    """One tiny configuration for each family, with the features that make it different."""
    neox = {**_SIZES, "intermediate_size": 96, "rotary_pct": 0.5}
    return {
        "llama": families.LlamaConfig(**_GROUPED),
        "llama-biased": families.LlamaConfig(**_GROUPED, attention_bias=True, mlp_bias=True),
        "llama-tied": families.LlamaConfig(**_GROUPED, tie_word_embeddings=True),
        **{f"llama-{kind}": families.LlamaConfig(**_GROUPED, rope_parameters=_ROPE[kind]) for kind in _ROPE},
        "mistral": families.MistralConfig(**_GROUPED, sliding_window=8),
        "mistral-whole": families.MistralConfig(**_GROUPED, sliding_window=None),
        "qwen2": families.Qwen2Config(**_GROUPED),
        "qwen3": families.Qwen3Config(**_GROUPED, head_dim=24),
        "qwen3-wide": families.Qwen3Config(**_GROUPED, head_dim=32),
        "gemma2": families.Gemma2Config(**_GROUPED, head_dim=16, sliding_window=8),
        "gemma3": families.Gemma3TextConfig(**_GROUPED, head_dim=16, sliding_window=8),
        "phi3": families.Phi3Config(**_GROUPED),
        "phi3-partial": families.Phi3Config(**_GROUPED, rope_parameters=_HALF_ROTARY),
        "gpt2": families.GPT2Config(**_SIZES),
        "opt": families.OPTConfig(**_SIZES, ffn_dim=96, word_embed_proj_dim=64),
        "gpt_neox": families.GPTNeoXConfig(**neox),
        "gpt_neox-tied": families.GPTNeoXConfig(**neox, tie_word_embeddings=True),
        "cohere": families.CohereConfig(**_GROUPED),
        "granite": families.GraniteConfig(**_GROUPED, logits_scaling=4.0, attention_multiplier=0.1),
    }


def backbone(family: str = "llama", dtype: torch.dtype = torch.float32) -> Backbone:
    """A tiny random model on the CPU. Weights are large enough for attention to matter."""
    return from_config(configs()[family], dtype)


def from_config(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> Backbone:
    """The same for any configuration."""
    hook.register()
    torch.manual_seed(0)
    config.initializer_range = 0.2
    model = AutoModelForCausalLM.from_config(config, attn_implementation=hook.NAME, dtype=dtype)
    return Backbone(model.eval().requires_grad_(False), torch.device("cpu"))


def encoder_configs() -> dict[str, PretrainedConfig]:
    """Tiny models whose tokens see the whole text, and one decoder that embeds beside another model."""
    sizes = {**_SIZES, "intermediate_size": 96}
    gemma = families.Gemma3TextConfig(**_GROUPED, head_dim=16, sliding_window=8)
    gemma.use_bidirectional_attention = True
    return {
        "bert": families.BertConfig(**sizes),
        "xlm-roberta": families.XLMRobertaConfig(**{**sizes, "pad_token_id": 1}),
        "distilbert": families.DistilBertConfig(**sizes),
        "modernbert": families.ModernBertConfig(**sizes, local_attention=16),
        "gemma3-bidirectional": gemma,
        "qwen3": families.Qwen3Config(**_GROUPED, head_dim=24),
    }


def encoder(family: str, dtype: torch.dtype = torch.float32) -> Backbone:
    """A tiny random embedding model on the CPU, without a language model's head."""
    hook.register()
    torch.manual_seed(1)
    config = encoder_configs()[family]
    config.initializer_range = 0.2
    model = AutoModel.from_config(config, attn_implementation=hook.NAME, dtype=dtype)
    return Backbone(model.eval().requires_grad_(False), torch.device("cpu"))


def sizes() -> dict[str, Any]:
    """The sizes that the tiny families share, for one more."""
    return dict(_GROUPED)


@cache
def computation(model: Backbone) -> Computation:
    """What would be taken for this model."""
    return accelerate(model, model.layer_shapes())


def attention(model: Backbone) -> AttentionBackend:
    """Its attention."""
    return computation(model).attention


class Bench:
    """Scheduler and runner over one backbone, stepped by hand; integrity is checked after every step."""

    def __init__(
        self, model: Backbone, num_blocks: int = 256, embedder: Backbone | None = None, **settings: Any
    ) -> None:
        values = {"token_budget": 64, "chunk_size": 16, "max_running": 16} | settings
        pool = BlockPool(num_blocks, attention(model).block_size)
        whole_embeds = embedder is not None and not embedder.layer_shapes()
        prefixes = PrefixCache(pool)
        self.scheduler = Scheduler(SchedulerSettings.model_validate(values), pool, whole_embeds, prefixes)
        self.runner: StepRunner = _runner(model, pool)
        if embedder is not None:
            self.runner = SplitRunner(_runner(embedder, pool), self.runner)
        self.compositions: list[str] = []

    def step(self) -> list[Output]:
        plan = self.scheduler.schedule(0.0)
        self.compositions.append(plan.composition)
        outputs = self.scheduler.commit(plan, self.runner.run(plan), 0.0)
        self.scheduler.check_integrity()
        return outputs

    def run(self, requests: Sequence[Request]) -> dict[Request, Any]:
        """Run requests together to their ends: output ids of generations, vectors of embeddings."""
        for request in requests:
            self.scheduler.check_admissible(request)
            self.scheduler.add(request)
        results: dict[Request, Any] = {}
        while self.scheduler.has_work:
            for output in self.step():
                if isinstance(output, Embedded):
                    results[output.request] = output.vector
                elif isinstance(output, Produced):
                    results.setdefault(output.request, []).append(output.token.token)
        assert self.scheduler.pool.used == 0
        return results


def _runner(model: Backbone, pool: BlockPool) -> Runner:
    cache = KVCache(model.layer_shapes(), pool.num_blocks, pool.block_size, model.dtype, model.device)
    sampler = Sampler(int(model.config.vocab_size), computation(model).largest)
    return Runner(model, attention(model), cache, computation(model).adapters, sampler)


def adapter(version: int) -> Adapter:
    """One of two versions of an adapter for `backbone()`, loaded anew."""
    return Adapter("A", layers(version))


@cache
def layers(version: int) -> dict[str, Factors]:
    """Rank 4 on queries, values and one of the MLP's matrices, strong enough to change most tokens."""
    generator = torch.Generator().manual_seed(version)

    def factors(module: nn.Module) -> Factors:
        assert isinstance(module, nn.Linear)
        a = torch.randn(4, module.in_features, generator=generator)
        return Factors(a, torch.randn(module.out_features, 4, generator=generator) * 0.1)

    targets = ("q_proj", "v_proj", "down_proj")
    modules = backbone().model.named_modules()
    return {name: factors(module) for name, module in modules if name.endswith(targets)}


def embed(ids: list[int], pooling: PoolingMode = "mean", adapter: Adapter | None = None) -> EmbedRequest:
    """An embedding that is not normalised, so that differences show."""
    return EmbedRequest("", list(ids), adapter, 0.0, pooling=(pooling,), normalize=False)


def generate(
    ids: list[int],
    max_tokens: int = 12,
    adapter: Adapter | None = None,
    seed: int = 0,
    stop_ids: frozenset[int] = frozenset(),
    **params: Any,
) -> GenerateRequest:
    """A generation, greedy unless told otherwise."""
    return GenerateRequest(
        "",
        list(ids),
        adapter,
        0.0,
        params=SamplingParams.from_mapping({"temperature": 0} | params),
        prompt_length=len(ids),
        max_tokens=max_tokens,
        seed=seed,
        stop_ids=stop_ids,
    )


def random_ids(length: int, seed: int) -> list[int]:
    """Token ids that are no special ones."""
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
