"""The interface of an attention kernel, and the choice among those there are.

A backend sees one step's batch and the cache; it knows nothing of models or requests.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from orthrus_backend.attention import paged
from orthrus_backend.attention.reference import ReferenceAttention
from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.batch import Batch
from orthrus_backend.kv_cache import KVCache, LayerShape
from orthrus_backend.native.compiled import NotCompiledError

_log = logging.getLogger(__name__)


class StepAttention(Protocol):
    """Attention for one step; called once by every layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """Keep the new keys and values, then attend.

        Args:
            layer: index of the layer.
            query: [T, heads, key_dim], after position embedding; rows behind those of the batch are filling.
            key: [T, kv_heads, key_dim], after position embedding; not repeated for grouped heads.
            value: [T, kv_heads, value_dim].
            spec: the layer's scale, window and cap.

        Returns:
            [T, heads, value_dim].
        """


class AttentionBackend(Protocol):
    """A kernel family. `block_size` is the page size it wants."""

    block_size: int

    def begin(self, batch: Batch, cache: KVCache) -> StepAttention:
        """Prepare what all layers of a step share."""


def make_attention(device: torch.device, dtype: torch.dtype, shapes: Sequence[LayerShape]) -> AttentionBackend:
    """The best backend for such layers on this device; the reference, which runs everything everywhere, is the last."""
    if paged.fits(device, dtype, shapes):
        try:
            return paged.PagedAttention(dtype)
        except NotCompiledError as error:
            _log.warning("attention runs on PyTorch's own operations, which is slower: %s", error)
    if device.type == "cuda":
        # cuDNN's attention compiles a plan for every new shape and keeps it; here every step has new shapes
        torch.backends.cuda.enable_cudnn_sdp(False)
    return ReferenceAttention()
