"""Computes a plan: one packed forward pass for both kinds, then pooling and sampling on contiguous rows.

Reads requests and changes none: `Scheduler.commit` applies what comes back.
"""

import torch

from orthrus_backend.adapters import AdapterRows
from orthrus_backend.attention.backend import AttentionBackend
from orthrus_backend.batch import build_batch
from orthrus_backend.embedding_head import EmbeddingHead
from orthrus_backend.kv_cache import KVCache
from orthrus_backend.model import Backbone
from orthrus_backend.outputs import StepResult
from orthrus_backend.plan import Plan
from orthrus_backend.pooling import pool_slices
from orthrus_backend.request import GenerateRequest, TokenLogprobs
from orthrus_backend.sampling import Sampler


class Runner:
    """The unified runner: embed chunks, prefill chunks and decode tokens share every layer of one pass."""

    def __init__(
        self,
        backbone: Backbone,
        attention: AttentionBackend,
        cache: KVCache,
        adapters: AdapterRows,
        sampler: Sampler,
        head: EmbeddingHead | None = None,
    ) -> None:
        self._backbone = backbone
        self._attention = attention
        self._cache = cache
        self._adapters = adapters
        self._sampler = sampler
        self._head = head or EmbeddingHead()

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """Forward pass, pooling and sampling for the slices of a plan."""
        batch = build_batch(plan, self._cache.block_size, self._backbone.device)
        step = self._attention.begin(batch, self._cache)
        with self._adapters.active(batch.adapters):
            hidden = self._backbone.hidden(batch.input_ids, batch.positions, step)  # [T, d]
        pooled, at_borders = pool_slices(hidden, plan.embeds, self._head)
        sampled: list[TokenLogprobs] = []
        if plan.samples:
            requests = [s.request for s in plan.samples if isinstance(s.request, GenerateRequest)]
            sampled = self._sampler.sample(self._backbone.logits(hidden[batch.sample_rows]), requests)
        return StepResult(sampled, pooled, at_borders)
