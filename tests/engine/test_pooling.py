"""Pooling: chunked equals one-shot, and both equal sentence-transformers."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from orthrus_backend.params import EmbeddingParams, PoolingMode
from orthrus_backend.plan import Slice
from orthrus_backend.pooling import PoolState, finish, pool_chunk, pool_slices
from orthrus_backend.request import EmbedRequest

MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
REFERENCE_NAMES = {"mean": "mean", "weighted_mean": "weightedmean", "cls": "cls", "last": "lasttoken"}


def hidden_states(rows: int, width: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def reference(hidden: Tensor, mode: PoolingMode) -> np.ndarray:
    """sentence-transformers' own pooling of one text: [d]."""
    module = Pooling(hidden.shape[1], pooling_mode=REFERENCE_NAMES[mode])
    features = {"token_embeddings": hidden[None], "attention_mask": torch.ones(1, len(hidden), dtype=torch.long)}
    return module(features)["sentence_embedding"][0].numpy()


def pooled(hidden: Tensor, mode: PoolingMode, chunks: Sequence[int]) -> PoolState:
    state, start = None, 0
    for length in chunks:
        state = pool_chunk(hidden[start : start + length], start, mode, state)
        start += length
    assert start == len(hidden)
    assert state is not None
    return state


def embed_request(length: int, mode: PoolingMode, normalize: bool = False, **params: object) -> EmbedRequest:
    return EmbedRequest(
        id="e",
        tokens=[0] * length,
        adapter=None,
        arrival=0.0,
        params=EmbeddingParams.from_mapping(params),
        pooling=mode,
        normalize=normalize,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 33])
def test_every_chunking_equals_sentence_transformers(mode: PoolingMode, chunk: int) -> None:
    hidden = hidden_states(33)
    chunks = [min(chunk, 33 - start) for start in range(0, 33, chunk)]
    vector = finish(pooled(hidden, mode, chunks), None, normalize=False)
    np.testing.assert_allclose(vector, reference(hidden, mode), rtol=1e-5, atol=1e-6)


@given(chunks=st.lists(st.integers(1, 20), min_size=1, max_size=12), mode=st.sampled_from(MODES))
@settings(deadline=None, max_examples=60)
def test_random_chunkings_change_nothing_beyond_rounding(chunks: list[int], mode: PoolingMode) -> None:
    hidden = hidden_states(sum(chunks), seed=len(chunks))
    chunked, whole = pooled(hidden, mode, chunks), pooled(hidden, mode, [sum(chunks)])
    np.testing.assert_allclose(finish(chunked, None, True), finish(whole, None, True), rtol=1e-5, atol=1e-6)


def test_a_state_is_a_value_that_later_chunks_leave_alone() -> None:
    hidden = hidden_states(6)
    first = pool_chunk(hidden[:3], 0, "mean", None)
    before = first.total.clone()
    pool_chunk(hidden[3:], 3, "mean", first)
    assert torch.equal(first.total, before)
    assert first.weight == 3


@pytest.mark.parametrize("mode", ["mean", "weighted_mean"])
def test_bfloat16_rows_are_summed_in_float32(mode: PoolingMode) -> None:
    hidden = hidden_states(4096).abs().bfloat16()  # a bfloat16 sum stops growing after a few hundred ones
    state = pooled(hidden, mode, [16] * 256)
    assert state.total.dtype == torch.float32
    np.testing.assert_allclose(finish(state, None, False), reference(hidden.float(), mode), rtol=1e-5)


def test_cut_comes_before_normalisation() -> None:
    hidden = hidden_states(5)
    vector = finish(pool_chunk(hidden, 0, "mean", None), 3, normalize=True)
    mean = hidden.mean(0).numpy()[:3]
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=1e-5)
    assert vector.dtype == np.float32


def test_a_zero_vector_stays_zero() -> None:
    assert not finish(pool_chunk(torch.zeros(3, 4), 0, "mean", None), None, normalize=True).any()


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int, int, PoolingMode, bool, int | None]]:
    """Slices of a step: (tokens before, tokens in it, tokens after it, mode, normalize, dimensions)."""
    piece = st.tuples(
        st.integers(0, 5),
        st.integers(1, 9),
        st.sampled_from([0, 0, 3]),
        st.sampled_from(MODES),
        st.booleans(),
        st.none() | st.integers(1, 8),
    )
    return draw(st.lists(piece, min_size=1, max_size=8))


@given(step=steps())
@settings(deadline=None, max_examples=100)
def test_a_step_of_many_slices_equals_one_slice_at_a_time(
    step: list[tuple[int, int, int, PoolingMode, bool, int | None]],
) -> None:
    rows = sum(length for _, length, *_ in step)
    hidden = hidden_states(rows + 3, seed=rows)  # three rows of generations follow
    slices, expected, offset = [], [], 0
    for i, (before, length, after, mode, normalize, dimensions) in enumerate(step):
        request = embed_request(before + length + after, mode, normalize, dimensions=dimensions)
        request.pool = pool_chunk(hidden_states(before, seed=i), 0, mode, None) if before else None
        state = pool_chunk(hidden[offset : offset + length], before, mode, request.pool)
        slices.append(Slice(request, before, length))
        expected.append(state if after else finish(state, dimensions, normalize))
        offset += length
    for got, want in zip(pool_slices(hidden, slices), expected, strict=True):
        if isinstance(want, PoolState):
            assert isinstance(got, PoolState)
            assert got.weight == want.weight
            torch.testing.assert_close(got.total, want.total)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_no_slices_give_no_vectors() -> None:
    assert pool_slices(hidden_states(3), []) == []


def test_a_broken_neighbour_does_not_spread() -> None:
    hidden = hidden_states(4)
    hidden[:2] = float("nan")
    whole = [Slice(embed_request(2, "mean"), 0, 2), Slice(embed_request(2, "mean"), 0, 2)]
    _, healthy = pool_slices(hidden, whole)
    assert isinstance(healthy, np.ndarray)
    assert np.isfinite(healthy).all()


def test_a_kept_state_does_not_keep_the_step_alive() -> None:
    slices = [Slice(embed_request(5, "mean"), 0, 2), Slice(embed_request(2, "mean"), 0, 2)]
    state, _ = pool_slices(hidden_states(4), slices)
    assert isinstance(state, PoolState)
    assert state.total.untyped_storage().nbytes() == state.total.numel() * 4
