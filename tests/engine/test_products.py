"""Products on matrix tiles against float32, and that rows see neither their neighbours nor the threads."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orthrus_backend.native.ops import Kernels
from orthrus_backend.native.products import TileProduct, TileProjection, can_project, fits_tiles, have_tiles

pytestmark = pytest.mark.skipif(not have_tiles(), reason="this processor has no matrix tiles")

ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 130, 513)
SHAPES = ((32, 32), (96, 64), (960, 576), (576, 1536), (224, 2048))  # columns, depth


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).bfloat16()


def product(columns: int, depth: int, bias: bool, gates: bool = False) -> tuple[TileProduct, Tensor, Tensor | None]:
    """With its weight and bias."""
    weight, added = draw(columns, depth), draw(columns) * 20 if bias else None
    return TileProduct(weight, added, gates), weight, added


@pytest.fixture(params=[1, 2, 3, 64], ids=lambda n: f"{n} threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("gates", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_products_equal_those_in_float32(rows: int, columns: int, depth: int, bias: bool, gates: bool) -> None:
    multiply, weight, added = product(columns, depth, bias, gates)
    x = draw(rows, depth, seed=1)
    expected = x.float() @ weight.float().T + (0 if added is None else added.float())
    torch.testing.assert_close(multiply(x).float(), expected, rtol=2**-8, atol=depth**0.5 * 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("columns", "depth"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_gating_in_the_product_is_gating_after_it(rows: int, columns: int, depth: int, bias: bool) -> None:
    multiply, weight, added = product(columns, depth, bias, gates=True)
    x = draw(rows, depth, seed=1)
    got = multiply.gated(x)
    assert torch.equal(got, Kernels(torch.bfloat16).gate(multiply(x)))
    both = x.float() @ weight.float().T + (0 if added is None else added.float())
    gate, up = both.bfloat16().float().chunk(2, 1)
    torch.testing.assert_close(got.float(), torch.nn.functional.silu(gate) * up, rtol=3e-2, atol=2e-2)


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_rows_are_the_same_in_any_company(columns: int, depth: int, threads: int) -> None:
    multiply, _, _ = product(columns, depth, bias=True, gates=True)
    x = draw(513, depth, seed=1)
    torch.set_num_threads(1)
    whole, gated = multiply(x), multiply.gated(x)
    torch.set_num_threads(threads)
    for rows in ROWS:
        for first in {0, 7, 513 - rows}:
            part = x[first : first + rows].contiguous()[: 513 - first]
            assert torch.equal(multiply(part), whole[first : first + rows])
            assert torch.equal(multiply.gated(part), gated[first : first + rows])


@pytest.mark.parametrize("rows", ROWS[1:])
def test_nothing_of_a_broken_row_reaches_its_neighbours(rows: int) -> None:
    multiply, _, _ = product(96, 1536, bias=False, gates=True)
    x = draw(rows, 1536)
    right, gated = multiply(x), multiply.gated(x)
    for broken in {0, rows // 2, rows - 1}:
        with_nan = x.clone()
        with_nan[broken] = torch.nan
        others = torch.arange(rows) != broken
        for got, expected in ((multiply(with_nan), right), (multiply.gated(with_nan), gated)):
            assert torch.equal(got[others], expected[others])
            assert got[broken].isnan().all()


def linear(columns: int, depth: int, **options: Any) -> nn.Linear:
    layer = nn.Linear(depth, columns, **options)
    layer.weight.data.copy_(draw(columns, depth))
    return layer


@pytest.mark.parametrize(("columns", "depth"), SHAPES)
def test_scores_equal_those_in_float32_in_any_company(columns: int, depth: int, threads: int) -> None:
    layer = linear(columns, depth, bias=False, dtype=torch.bfloat16)
    project, x = TileProjection(layer), draw(513, depth, seed=1)
    whole = project(x)
    expected = x.float() @ layer.weight.float().T
    torch.testing.assert_close(whole.float(), expected, rtol=2**-8, atol=depth**0.5 * 1e-5)
    torch.set_num_threads(threads + 1)
    for rows in ROWS:
        part = x[513 - rows :].clone()
        part[rows // 2] = torch.nan
        others = torch.arange(rows) != rows // 2
        assert torch.equal(project(part)[others], whole[513 - rows :][others])


def test_a_head_with_a_bias_or_in_float32_is_left_to_others() -> None:
    assert can_project(linear(96, 64, bias=False, dtype=torch.bfloat16))
    assert not can_project(linear(96, 64, bias=True, dtype=torch.bfloat16))
    assert not can_project(linear(96, 64, bias=False))
    assert not can_project(None)


def test_rows_may_lie_apart() -> None:
    multiply, _, _ = product(96, 64, bias=False)
    x = draw(50, 200)
    assert torch.equal(multiply(x[:, 100:164]), multiply(x[:, 100:164].contiguous()))


def test_nothing_is_computed_for_no_rows() -> None:
    multiply, _, _ = product(96, 64, bias=False)
    assert multiply(draw(0, 64)).shape == (0, 96)


@pytest.mark.parametrize(
    ("columns", "depth", "dtype"), [(32, 32, torch.float32), (48, 32, torch.bfloat16), (32, 48, torch.bfloat16)]
)
def test_what_does_not_fit_is_left_to_others(columns: int, depth: int, dtype: torch.dtype) -> None:
    assert not fits_tiles(torch.zeros(columns, depth, dtype=dtype))
