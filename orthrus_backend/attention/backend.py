"""The interface of an attention kernel, and the registry that names the kernels there are.

A backend sees one step's batch and the cache; it knows nothing of models or requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from orthrus_backend.attention.reference import ReferenceAttention
from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.batch import Batch
from orthrus_backend.kv_cache import KVCache


class StepAttention(Protocol):
    """Attention for one step; called once by every layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """Keep the new keys and values, then attend.

        Args:
            layer: index of the layer.
            query: [T, heads, key_dim], after position embedding.
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


@dataclass(frozen=True, slots=True)
class _Entry:
    usable: Callable[[torch.device], bool]
    make: Callable[[], AttentionBackend]


def make_attention(device: torch.device) -> AttentionBackend:
    """The best backend for the device: the first usable one, the reference last because it runs everywhere."""
    entries = (_Entry(lambda device: True, ReferenceAttention),)
    return next(entry.make() for entry in entries if entry.usable(device))
