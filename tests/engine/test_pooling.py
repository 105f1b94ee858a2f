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

from orthrus_backend.params import PoolingMode
from orthrus_backend.plan import Slice
from orthrus_backend.pooling import PoolState, Vector, pool_slices
from orthrus_backend.request import EmbedRequest

MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
SINGLE = [(mode,) for mode in MODES]
REFERENCE_NAMES = {
    "mean": "mean",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean",
    "max": "max",
    "cls": "cls",
    "last": "lasttoken",
}

Modes = tuple[PoolingMode, ...]


def hidden_states(rows: int, width: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def reference(hidden: Tensor, modes: Modes, unpooled: int = 0) -> np.ndarray:
    """sentence-transformers' own pooling of one text: [modes x d]."""
    names = [REFERENCE_NAMES[mode] for mode in modes]
    module = Pooling(hidden.shape[1], pooling_mode=names, include_prompt=False)
    features = {"token_embeddings": hidden[None], "attention_mask": torch.ones(1, len(hidden), dtype=torch.long)}
    return module(features | {"prompt_length": unpooled})["sentence_embedding"][0].numpy()


def embed_request(length: int, modes: Modes, normalize: bool = False, **fields: int | None) -> EmbedRequest:
    return EmbedRequest("e", [0] * length, None, 0.0, pooling=modes, normalize=normalize, **fields)


def pool_chunks(hidden: Tensor, request: EmbedRequest, chunks: Sequence[int]) -> PoolState | Vector:
    """Pool a text chunk by chunk; gives the state while rows are missing, then the vector."""
    start, result = 0, None
    for length in chunks:
        (result,), _ = pool_slices(hidden[start : start + length], [Slice(request, start, length)])
        request.pool, start = result, start + length
    assert result is not None
    return result


def pooled(hidden: Tensor, modes: Modes, chunks: Sequence[int], normalize: bool = False, **fields: int) -> Vector:
    vector = pool_chunks(hidden, embed_request(len(hidden), modes, normalize, **fields), chunks)
    assert isinstance(vector, np.ndarray)
    return vector


@pytest.mark.parametrize("modes", [*SINGLE, ("last", "mean"), ("max", "cls", "mean_sqrt_len"), ("mean", "mean")])
@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 33])
@pytest.mark.parametrize("unpooled", [0, 1, 9, 32])
def test_every_chunking_equals_sentence_transformers(modes: Modes, chunk: int, unpooled: int) -> None:
    hidden = hidden_states(33)
    chunks = [min(chunk, 33 - start) for start in range(0, 33, chunk)]
    vector = pooled(hidden, modes, chunks, unpooled=unpooled)
    np.testing.assert_allclose(vector, reference(hidden, modes, unpooled), rtol=1e-5, atol=1e-6)


@given(
    chunks=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=3).map(tuple),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_random_chunkings_change_nothing_beyond_rounding(chunks: list[int], modes: Modes, data: st.DataObject) -> None:
    hidden = hidden_states(sum(chunks), seed=len(chunks))
    unpooled = data.draw(st.integers(0, len(hidden) - 1))
    chunked = pooled(hidden, modes, chunks, normalize=True, unpooled=unpooled)
    whole = pooled(hidden, modes, [sum(chunks)], normalize=True, unpooled=unpooled)
    np.testing.assert_allclose(chunked, whole, rtol=1e-5, atol=1e-6)


def test_a_state_is_a_value_that_later_chunks_leave_alone() -> None:
    hidden = hidden_states(6)
    request = embed_request(6, ("mean", "last", "max"))
    first = pool_chunks(hidden, request, [3])
    assert isinstance(first, PoolState)
    before = first.totals.clone()
    pool_slices(hidden[3:], [Slice(request, 3, 2)])
    assert torch.equal(first.totals, before)
    assert first.weights[0] == 3


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_len", "weighted_mean"])
def test_bfloat16_rows_are_summed_in_float32(mode: PoolingMode) -> None:
    hidden = hidden_states(4096).abs().bfloat16()  # a bfloat16 sum stops growing after a few hundred ones
    vector = pooled(hidden, (mode,), [16] * 256)
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, reference(hidden.float(), (mode,)), rtol=1e-5)


def test_cut_comes_before_normalisation() -> None:
    hidden = hidden_states(5)
    vector = pooled(hidden, ("mean",), [5], normalize=True, dimensions=3)
    mean = hidden.mean(0).numpy()[:3]
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=1e-5)
    assert vector.dtype == np.float32


def test_a_zero_vector_stays_zero() -> None:
    assert not pooled(torch.zeros(3, 4), ("mean",), [3], normalize=True).any()


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int, int, Modes, bool, int | None, int]]:
    """Slices of a step: (tokens before, tokens in it, tokens after it, modes, normalize, dimensions, unpooled)."""
    piece = st.tuples(
        st.integers(0, 5),
        st.integers(1, 9),
        st.sampled_from([0, 0, 3]),
        st.lists(st.sampled_from(MODES), min_size=1, max_size=3).map(tuple),
        st.booleans(),
        st.none() | st.integers(1, 8),
        st.integers(0, 4),
    )
    return draw(st.lists(piece, min_size=1, max_size=8))


@given(step=steps())
@settings(deadline=None, max_examples=100)
def test_a_step_of_many_slices_equals_one_slice_at_a_time(
    step: list[tuple[int, int, int, Modes, bool, int | None, int]],
) -> None:
    rows = sum(length for _, length, *_ in step)
    hidden = hidden_states(rows + 3, seed=rows)  # three rows of generations follow
    slices, expected, offset = [], [], 0
    for i, (before, length, after, modes, normalize, dimensions, unpooled) in enumerate(step):
        total = before + length + after
        request = embed_request(total, modes, normalize, dimensions=dimensions, unpooled=min(unpooled, total - 1))
        request.pool = pool_chunks(hidden_states(before, seed=i), request, [before]) if before else None
        slices.append(Slice(request, before, length))
        expected += pool_slices(hidden[offset : offset + length], slices[-1:])[0]
        offset += length
    for got, want in zip(pool_slices(hidden, slices)[0], expected, strict=True):
        if isinstance(want, PoolState):
            assert isinstance(got, PoolState)
            assert got.weights == want.weights
            torch.testing.assert_close(got.totals, want.totals)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_no_slices_give_no_vectors() -> None:
    assert pool_slices(hidden_states(3), []) == ([], [])


@pytest.mark.parametrize("modes", SINGLE)
def test_a_broken_neighbour_does_not_spread(modes: Modes) -> None:
    hidden = hidden_states(4)
    hidden[:2] = float("nan")
    whole = [Slice(embed_request(2, modes), 0, 2), Slice(embed_request(2, modes), 0, 2)]
    (_, healthy), _ = pool_slices(hidden, whole)
    assert isinstance(healthy, np.ndarray)
    assert np.isfinite(healthy).all()


def test_a_kept_state_does_not_keep_the_step_alive() -> None:
    slices = [Slice(embed_request(5, ("mean",)), 0, 2), Slice(embed_request(2, ("mean",)), 0, 2)]
    (state, _), _ = pool_slices(hidden_states(4), slices)
    assert isinstance(state, PoolState)
    assert state.totals.untyped_storage().nbytes() == state.totals.numel() * 4
