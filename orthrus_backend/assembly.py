"""Builds a running engine from settings: weights, memory, scheduler, threads; checks it before the first request."""

import logging
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from orthrus_backend.adapters import AdapterSet, load_adapter
from orthrus_backend.attention.backend import make_attention
from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import EngineSettings
from orthrus_backend.default_model import ensure_default_model
from orthrus_backend.detokenize import Detokenizer
from orthrus_backend.embed_intake import EmbedIntake
from orthrus_backend.embedding_head import EmbeddingHead
from orthrus_backend.embedding_recipe import EmbeddingRecipe
from orthrus_backend.engine import Engine
from orthrus_backend.generate_intake import GenerateIntake
from orthrus_backend.intake import Intake
from orthrus_backend.kv_cache import KVCache
from orthrus_backend.model import Backbone, load_backbone
from orthrus_backend.params import SamplingParams
from orthrus_backend.runner import Runner
from orthrus_backend.sampling import Sampler
from orthrus_backend.scheduling.scheduler import Scheduler
from orthrus_backend.self_check import self_check
from orthrus_backend.tokenization import Tokenization

_CPU_KV_BYTES = 1 << 30  # at most, when not told otherwise
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """A running engine and the intake that makes its requests."""

    engine: Engine
    intake: Intake
    tokenization: Tokenization


def build_service(settings: EngineSettings) -> Service:
    """Load everything, check it, start the engine.

    Raises:
        ValueError: something that was asked for cannot be served; the message names it.
    """
    if settings.model.threads:
        torch.set_num_threads(settings.model.threads)
    location = settings.model.model or str(ensure_default_model())
    backbone = load_backbone(location, settings.model)
    recipe = EmbeddingRecipe.read(location)
    tokenization = Tokenization(location, backbone.config)
    attention = make_attention(backbone.device)
    shapes = backbone.layer_shapes()
    difference = self_check(backbone, attention, shapes)
    _log.info("self-check of %s in %s: relative difference %.1e", location, backbone.dtype, difference)
    adapters = AdapterSet(backbone.model)
    for name, path in settings.model.adapters.items():
        adapters.add(load_adapter(name, Path(path), backbone.model, backbone.dtype, backbone.device))
    block_bytes = KVCache.block_bytes(shapes, attention.block_size, backbone.dtype)
    pool = BlockPool(_num_blocks(settings, block_bytes, backbone.device), attention.block_size)
    cache = KVCache(shapes, pool.num_blocks, pool.block_size, backbone.dtype, backbone.device)
    head = EmbeddingHead(recipe.steps, backbone.device)
    runner = Runner(backbone, attention, cache, adapters, Sampler(tokenization.vocab_size), head)

    def make_text(params: SamplingParams) -> Detokenizer:
        return Detokenizer(tokenization.backend, params.stop, params.include_stop_str_in_output, params.min_tokens)

    limit = _limit(settings, backbone, pool)
    intake = Intake(
        GenerateIntake(tokenization, limit, adapters.names, make_text),
        EmbedIntake(
            _for_texts(tokenization, location, backbone, recipe),
            recipe,
            limit,
            int(backbone.config.hidden_size),
            adapters.names,
        ),
    )
    return Service(Engine(Scheduler(settings.scheduler, pool), runner), intake, tokenization)


def _for_texts(tokenization: Tokenization, location: str, backbone: Backbone, recipe: EmbeddingRecipe) -> Tokenization:
    """How texts to embed are tokenised: as prompts are, or by a tokenizer of their own where the recipe asks for it."""
    if not (recipe.do_lower_case or recipe.append_eos):
        return tokenization
    return Tokenization(location, backbone.config, lowercase=recipe.do_lower_case, append_eos=recipe.append_eos)


def _num_blocks(settings: EngineSettings, block_bytes: int, device: torch.device) -> int:
    """Blocks that the memory for keys and values holds.

    Raises:
        ValueError: not even one block fits.
    """
    size: int | None = settings.cache.kv_memory
    if size is None:
        if device.type == "cuda":
            size = int(torch.cuda.mem_get_info(device)[0] * 0.85)  # the rest is for activations
        else:
            size = min(_CPU_KV_BYTES, psutil.virtual_memory().available // 4)
    if size < block_bytes:
        raise ValueError(f"kv_memory {size} bytes is less than one block of {block_bytes} bytes")
    return size // block_bytes


def _limit(settings: EngineSettings, backbone: Backbone, pool: BlockPool) -> int:
    """Tokens of prompt and output together that one request may have.

    Raises:
        ValueError: more is asked for than the model was made for.
    """
    asked = settings.model.max_model_len
    if asked > backbone.limit:
        raise ValueError(f"max_model_len {asked} is above the model's own limit of {backbone.limit}")
    return min(asked or backbone.limit, pool.num_blocks * pool.block_size)
