"""Builds a running engine from settings: weights, memory, scheduler, threads; checks it before the first request."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch

from orthrus_backend.acceleration import Computation, accelerate
from orthrus_backend.accounting import show_adapters
from orthrus_backend.adapter_catalogue import AdapterCatalogue
from orthrus_backend.adapters import Adapter, load_adapter
from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import NO_ADAPTER, EngineSettings, ModelSettings
from orthrus_backend.default_model import EMBEDDING_ADAPTER, ensure_default_model
from orthrus_backend.detokenize import Detokenizer
from orthrus_backend.embed_intake import EmbedIntake
from orthrus_backend.embedding_head import EmbeddingHead
from orthrus_backend.embedding_recipe import EmbeddingRecipe
from orthrus_backend.engine import Engine, StepRunner
from orthrus_backend.generate_intake import GenerateIntake
from orthrus_backend.intake import Intake
from orthrus_backend.kv_cache import KVCache, LayerShape
from orthrus_backend.model import Backbone, load_backbone
from orthrus_backend.params import SamplingParams
from orthrus_backend.prefix_cache import PrefixCache
from orthrus_backend.runner import Runner
from orthrus_backend.sampling import Sampler
from orthrus_backend.scheduling.scheduler import Scheduler
from orthrus_backend.self_check import self_check
from orthrus_backend.split_runner import SplitRunner
from orthrus_backend.tokenization import Tokenization

_CPU_KV_BYTES = 1 << 30  # at most, when not told otherwise
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """A running engine and the intake that makes its requests."""

    engine: Engine
    intake: Intake
    tokenization: Tokenization
    adapters: AdapterCatalogue

    def close(self, timeout: float = 0.0) -> None:
        """Give running requests `timeout` seconds to finish, fail the rest, stop all threads."""
        self.adapters.close()
        self.engine.close(timeout)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One set of weights and what was learnt of it at load. `shapes` is empty where texts are always whole."""

    location: str
    backbone: Backbone
    computation: Computation
    shapes: list[LayerShape]
    tokenization: Tokenization


def build_service(settings: EngineSettings, on_failure: Callable[[], None] = lambda: None) -> Service:
    """Load everything, check it, start the engine; `on_failure` is called if it fails later, when all is answered.

    Raises:
        ValueError: something that was asked for cannot be served; the message names it.
    """
    # In a thread that ends: OpenMP keeps helpers for each thread that ever computed. As soon as there are more of them
    # than cores, all sleep between any two loops of a step, and waking them takes longer than many a loop.
    with ThreadPoolExecutor(1, thread_name_prefix="orthrus-load") as loader:
        return loader.submit(_build, settings, on_failure).result()


def _build(settings: EngineSettings, on_failure: Callable[[], None]) -> Service:
    if settings.model.threads:
        torch.set_num_threads(settings.model.threads)
    generator = load_model(settings.model.model or str(ensure_default_model()), settings)
    apart = settings.model.embedding_model
    embedder = load_model(apart, settings, head=False) if apart else None
    return assemble(settings, generator, embedder, on_failure, _embedding_adapter(settings.model))


def assemble(
    settings: EngineSettings,
    generator: LoadedModel,
    embedder: LoadedModel | None = None,
    on_failure: Callable[[], None] = lambda: None,
    embedding_adapter: Path | None = None,
) -> Service:
    """The rest of `build_service`, from loaded models, which compute for one service at a time.

    `embedding_adapter`: folder of the generator's adapter that embeds texts which name none.
    """
    models = [generator] if embedder is None else [generator, embedder]
    size = generator.computation.attention.block_size
    block_bytes = sum(KVCache.block_bytes(model.shapes, size, model.backbone.dtype) for model in models)
    pool = BlockPool(_num_blocks(settings, block_bytes, generator.backbone.device), size)
    adapters = _adapters(generator.backbone, settings.model)
    embeds = embedder or generator
    prefixes = PrefixCache(pool) if settings.cache.prefix_caching else None
    scheduler = Scheduler(settings.scheduler, pool, whole_embeds=not embeds.shapes, prefixes=prefixes)
    limit = _limit(settings, generator, pool)
    recipe = _recipe(embeds, embedding_adapter)
    intake = Intake(
        GenerateIntake(generator.tokenization, limit, adapters, _text_maker(generator.tokenization)),
        EmbedIntake(
            _for_texts(embeds, recipe),
            recipe,
            limit if embedder is None else _limit_apart(settings, embedder, scheduler),
            int(embeds.backbone.config.hidden_size),
            adapters if embedder is None else {},
            None if embedding_adapter is None else _load_adapter(generator.backbone, "embedding", embedding_adapter),
        ),
    )
    head = EmbeddingHead(recipe.steps, embeds.backbone.device)
    own = _runner(generator, pool, head)
    runner: StepRunner = own
    if embedder is not None:
        runner = SplitRunner(_runner(embedder, pool, head), own)
    engine = Engine(scheduler, runner, on_failure, settings.limits)
    adapters.watch(partial(show_adapters, engine.metrics))
    return Service(engine, intake, generator.tokenization, adapters)


def load_model(location: str, settings: EngineSettings, head: bool = True) -> LoadedModel:
    """Load a model, choose how it is computed, and compare that with its own code.

    Raises:
        ValueError: it cannot be loaded, or cannot be served exactly.
    """
    backbone = load_backbone(location, settings.model, head)
    shapes = backbone.layer_shapes()
    if head and not shapes:
        raise ValueError(f"model {location!r} is an encoder: it cannot generate; serve it with embedding_model")
    computation = accelerate(backbone, shapes)
    difference = self_check(backbone, computation.attention, shapes)
    if computation.fused:
        computation.fused.take_over()  # only now: the check compares with the model's own weights
    how = type(computation.fused or backbone.model).__name__
    _log.info("self-check of %s (%s) in %s: relative difference %.1e", location, how, backbone.dtype, difference)
    return LoadedModel(location, backbone, computation, shapes, Tokenization(location, backbone.config))


def _adapters(backbone: Backbone, settings: ModelSettings) -> AdapterCatalogue:
    list_file = Path(settings.adapters_file) if settings.adapters_file else None
    return AdapterCatalogue(partial(_load_adapter, backbone), settings.adapters, list_file)


def _load_adapter(backbone: Backbone, name: str, path: Path) -> Adapter:
    return load_adapter(name, path, backbone.model, backbone.dtype, backbone.device)


def _embedding_adapter(settings: ModelSettings) -> Path | None:
    """The folder of the adapter that embeds: the one that is named, or the default model's own."""
    if settings.embedding_adapter:
        return None if settings.embedding_adapter == NO_ADAPTER else Path(settings.embedding_adapter)
    return None if settings.model or settings.embedding_model else EMBEDDING_ADAPTER


def _recipe(embeds: LoadedModel, adapter: Path | None) -> EmbeddingRecipe:
    """How texts are embedded: as the adapter's own files say, where it has any, else as the model's do."""
    if adapter is not None and (adapter / "modules.json").is_file():
        return EmbeddingRecipe.read(str(adapter))
    return EmbeddingRecipe.read(embeds.location)


def _runner(model: LoadedModel, pool: BlockPool, head: EmbeddingHead) -> Runner:
    backbone = model.backbone
    cache = KVCache(model.shapes, pool.num_blocks, pool.block_size, backbone.dtype, backbone.device)
    computation = model.computation
    sampler = Sampler(model.tokenization.vocab_size, computation.largest)
    return Runner(backbone, computation.attention, cache, computation.adapters, sampler, head)


def _text_maker(tokenization: Tokenization) -> Callable[[SamplingParams], Detokenizer]:
    def make_text(params: SamplingParams) -> Detokenizer:
        return Detokenizer(tokenization.backend, params.stop, params.include_stop_str_in_output, params.min_tokens)

    return make_text


def _for_texts(model: LoadedModel, recipe: EmbeddingRecipe) -> Tokenization:
    """How texts to embed are tokenised: as prompts are, or by a tokenizer of their own where the recipe asks for it."""
    if not (recipe.do_lower_case or recipe.append_eos):
        return model.tokenization
    return Tokenization(
        model.location, model.backbone.config, lowercase=recipe.do_lower_case, append_eos=recipe.append_eos
    )


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


def _limit(settings: EngineSettings, model: LoadedModel, pool: BlockPool) -> int:
    """Tokens of prompt and output together that one request may have.

    Raises:
        ValueError: more is asked for than the model was made for.
    """
    asked, own = settings.model.max_model_len, model.backbone.limit
    if asked > own:
        raise ValueError(f"max_model_len {asked} is above the model's own limit of {own}")
    holds = pool.num_blocks * pool.block_size
    if holds < (asked or own):
        _log.warning("requests are limited to %d of %d tokens by kv_memory", holds, asked or own)
    return min(asked or own, holds)


def _limit_apart(settings: EngineSettings, model: LoadedModel, scheduler: Scheduler) -> int:
    """Tokens of one text for an embedding model of its own: what it knows, and what a step or the memory holds."""
    pool = scheduler.pool
    holds = pool.num_blocks * pool.block_size if model.shapes else scheduler.longest_whole
    return min(settings.model.max_model_len or model.backbone.limit, model.backbone.limit, holds)
