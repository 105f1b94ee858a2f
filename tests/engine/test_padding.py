"""Rows that fill a step up: few sizes, little waste, and nothing that they change."""

import pytest
import torch

from orthrus_backend.padding import fill_up, padded
from tests.engine.plain import plain_hidden
from tests.engine.tiny import Bench, backbone, embed, random_ids


def test_there_are_few_sizes_and_each_holds_its_rows() -> None:
    sizes = {rows: padded(rows) for rows in range(1, 513)}
    assert all(rows <= size for rows, size in sizes.items())
    assert sorted(set(sizes.values())) == [1, 2, 4, 8, 16, 32, 48, 64, *range(96, 513, 32)]


def test_rows_of_zeros_come_behind_and_on_the_cpu_only() -> None:
    x = torch.arange(6).reshape(3, 2)
    filled = fill_up(x, torch.device("cpu"))
    assert torch.equal(filled, torch.tensor([[0, 1], [2, 3], [4, 5], [0, 0]]))
    assert fill_up(x, torch.device("cuda")) is x
    assert fill_up(filled, torch.device("cpu")) is filled


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("length", [1, 3, 16, 17, 33, 65])
def test_no_filling_changes_a_vector(family: str, length: int) -> None:
    model, ids = backbone(family), random_ids(length, seed=length)
    request = embed(ids)
    vector = Bench(model, token_budget=128, chunk_size=0).run([request])[request]
    expected = plain_hidden(backbone(family), ids).mean(0)
    torch.testing.assert_close(torch.from_numpy(vector), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
