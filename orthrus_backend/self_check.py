"""Compares the packed, chunked, mixed way of running a model with the plain one, before anything is served.

Any Hugging Face model can be asked for; whether it can be served exactly is measured at load, not assumed.
"""

import torch
from torch import Tensor

from orthrus_backend.attention import hook
from orthrus_backend.attention.backend import AttentionBackend
from orthrus_backend.batch import build_batch
from orthrus_backend.blocks import BlockPool
from orthrus_backend.kv_cache import KVCache, LayerShape
from orthrus_backend.model import Backbone
from orthrus_backend.plan import Plan, Slice
from orthrus_backend.request import EmbedRequest, GenerateRequest, Request

_LENGTHS = (5, 23, 40)  # tokens: one chunk, two chunks, three chunks; the last one ends in a decode
_CHUNK = 17
# Largest difference relative to the largest value. A wrong mask, position or head is off by the order of 1.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.03}


def self_check(backbone: Backbone, attention: AttentionBackend, shapes: list[LayerShape]) -> float:
    """Run a few sequences both ways; returns the largest relative difference of hidden states and logits.

    Raises:
        ValueError: the two ways differ by more than rounding; the model cannot be served exactly.
    """
    size = attention.block_size
    vocabulary = int(backbone.config.vocab_size)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in _LENGTHS]
    pool = BlockPool(sum(-(-n // size) for n in _LENGTHS), size)
    cache = KVCache(shapes, pool.num_blocks, size, backbone.dtype, backbone.device)
    requests: list[Request] = [EmbedRequest("", ids, None, 0.0) for ids in texts]
    if backbone.generates:
        requests[-1] = GenerateRequest("", texts[-1], None, 0.0, prompt_length=len(texts[-1]) - 1)
    if shapes:
        assert all(pool.grow(request, request.total) for request in requests)
    packed = _run_chunked(backbone, attention, cache, requests, _CHUNK if shapes else max(_LENGTHS))
    worst = 0.0
    for ids, hidden in zip(texts, packed, strict=True):
        plain_hidden, plain_logits = _run_plain(backbone, ids)
        worst = max(worst, _difference(hidden, plain_hidden))
        if plain_logits is not None:
            worst = max(worst, _difference(backbone.logits(hidden), plain_logits))
    limit = _TOLERANCE[backbone.dtype]
    if not worst <= limit:
        raise ValueError(
            f"{backbone.config.model_type} gives other results in packed batches than alone "
            f"(relative difference {worst:.2g}, limit {limit:g}); it cannot be served exactly"
        )
    return worst


def _run_chunked(
    backbone: Backbone, attention: AttentionBackend, cache: KVCache, requests: list[Request], chunk: int
) -> list[Tensor]:
    """Hidden states of all requests, computed together in chunks: [n, d] each."""
    parts: list[list[Tensor]] = [[] for _ in requests]
    while any(request.remaining for request in requests):
        active = [request for request in requests if request.remaining]
        plan = Plan(tuple(Slice(r, r.computed, _length(r, chunk)) for r in active))
        batch = build_batch(plan, cache.block_size, backbone.device)
        hidden = backbone.hidden(batch.input_ids, batch.positions, attention.begin(batch, cache))
        for s, rows in zip(plan.slices, hidden.split([s.length for s in plan.slices]), strict=True):
            parts[requests.index(s.request)].append(rows)
            s.request.computed = s.stop
    return [torch.cat(rows) for rows in parts]


def _length(request: Request, chunk: int) -> int:
    if isinstance(request, GenerateRequest) and request.computed < request.prompt_length:
        return min(chunk, request.prompt_length - request.computed)
    return min(chunk, request.remaining)


@torch.inference_mode()
def _run_plain(backbone: Backbone, ids: list[int]) -> tuple[Tensor, Tensor | None]:
    """Hidden states [n, d] and logits [n, vocabulary] of one sequence, as the model's own code computes them."""
    model = backbone.model
    model.set_attn_implementation("eager")
    try:
        input_ids = torch.tensor([ids], device=backbone.device)
        hidden = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state[0]
        logits = model(input_ids=input_ids, use_cache=False).logits[0] if backbone.generates else None
    finally:
        model.set_attn_implementation(hook.NAME)
    return hidden, logits


def _difference(left: Tensor, right: Tensor) -> float:
    left, right = left.float(), right.float()
    return float((left - right).abs().max() / right.abs().max().clamp_min(1e-6))
