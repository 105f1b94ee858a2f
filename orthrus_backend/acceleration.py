"""Chooses how a loaded model is computed: which attention, and whether its decoder is replaced by the fused one."""

from collections.abc import Sequence
from dataclasses import dataclass

from orthrus_backend.adapters import AdapterHooks, AdapterRows
from orthrus_backend.attention.backend import AttentionBackend, make_attention
from orthrus_backend.attention.paged import PagedAttention
from orthrus_backend.fused.decoder import FusedDecoder, can_be_fused
from orthrus_backend.kv_cache import LayerShape
from orthrus_backend.model import Backbone
from orthrus_backend.native.products import TileProjection, can_project
from orthrus_backend.sampling import Largest


@dataclass(frozen=True, slots=True)
class Computation:
    """The parts of a forward pass that depend on model and machine."""

    attention: AttentionBackend
    adapters: AdapterRows
    fused: FusedDecoder | None = None  # in the backbone's place, where it can be
    largest: Largest | None = None


def accelerate(backbone: Backbone, shapes: Sequence[LayerShape]) -> Computation:
    """Take the fastest way there is for this model on this device, from now on. `shapes`: of the backbone's layers.

    That the result is the same is for `self_check` to find out; the backbone's own weights stay as they are.
    """
    attention = make_attention(backbone.device, backbone.dtype, shapes)
    if not isinstance(attention, PagedAttention):
        return Computation(attention, AdapterHooks(backbone.model))
    kernels = attention.kernels
    head = backbone.model.get_output_embeddings()
    if can_project(head):
        backbone.project = TileProjection(head)
    if not can_be_fused(backbone.model):
        return Computation(attention, AdapterHooks(backbone.model), largest=kernels.largest)
    adapters = AdapterRows()
    backbone.fused = fused = FusedDecoder(backbone.model, backbone.layer_specs(), kernels, adapters)
    return Computation(attention, adapters, fused, kernels.largest)
