"""The compiled kernels against plain PyTorch: attention over pages, and the element-wise parts of a layer."""

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from orthrus_backend.attention import backend
from orthrus_backend.attention.paged import PagedAttention
from orthrus_backend.attention.reference import ReferenceAttention
from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.batch import Batch, build_batch
from orthrus_backend.blocks import BlockPool
from orthrus_backend.kv_cache import KVCache, LayerShape
from orthrus_backend.native import compiled
from orthrus_backend.native.compiled import NotCompiledError
from orthrus_backend.native.ops import HEAD_DIMS, Kernels
from orthrus_backend.plan import Plan, Slice
from orthrus_backend.request import EmbedRequest, GenerateRequest, Request
from orthrus_backend.self_check import self_check
from tests.engine.tiny import attention, from_config, sizes

CPU = torch.device("cpu")
BLOCK = ReferenceAttention.block_size
# (tokens before, tokens now) of each slice: whole texts, chunks on and off block and tile borders, decodes
SLICES = ((0, 1), (0, 5), (0, 64), (0, 130), (1, 3), (63, 2), (64, 64), (100, 29), (200, 1), (64, 1), (15, 1), (16, 1))
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
WAYS = ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True))  # (dtype, with matrix tiles)


def plan_of(slices: tuple[tuple[int, int], ...]) -> tuple[Plan, BlockPool]:
    pool = BlockPool(256, BLOCK)
    planned = []
    for number, (before, now) in enumerate(slices):
        ids = list(range(before + now))
        request: Request = EmbedRequest("", ids, None, 0.0)
        if now == 1 and before:
            request = GenerateRequest("", ids, None, 0.0, prompt_length=before)
        if number % 2 or before:  # some whole texts keep nothing
            assert pool.grow(request, len(ids))
        request.computed = before
        planned.append(Slice(request, before, now))
    return Plan.ordered(planned), pool


def attention_of(dtype: torch.dtype, tiles: bool) -> PagedAttention:
    attention = PagedAttention(dtype, tiles)
    if tiles and not attention.kernels.tiles:
        pytest.skip("this processor has no matrix tiles")
    return attention


def attend_both(
    batch: Batch,
    pool: BlockPool,
    heads: int,
    kv_heads: int,
    dim: int,
    spec: AttentionSpec,
    dtype: torch.dtype,
    tiles: bool = False,
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(heads * dim)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    rows = len(batch.input_ids)
    query, key, value = (draw(rows, n, dim) for n in (heads, kv_heads, kv_heads))
    cache = KVCache([LayerShape(kv_heads, dim, dim)], pool.num_blocks, BLOCK, dtype, CPU)
    cache.keys[0].copy_(draw(*cache.keys[0].shape))
    cache.values[0].copy_(draw(*cache.values[0].shape))
    twin = KVCache([LayerShape(kv_heads, dim, dim)], pool.num_blocks, BLOCK, dtype, CPU)
    twin.keys[0].copy_(cache.keys[0])
    twin.values[0].copy_(cache.values[0])
    got = attention_of(dtype, tiles).begin(batch, cache).attend(0, query, key, value, spec)
    expected = ReferenceAttention().begin(batch, twin).attend(0, query, key, value, spec)
    assert torch.equal(cache.keys[0], twin.keys[0])
    assert torch.equal(cache.values[0], twin.values[0])
    return got.float(), expected.float()


@pytest.mark.parametrize(("dtype", "tiles"), WAYS)
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (8, 1), (14, 2), (6, 6), (64, 1)])
def test_attention_equals_the_reference(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, tiles: bool) -> None:
    plan, pool = plan_of(SLICES)
    batch = build_batch(plan, BLOCK, CPU)
    got, expected = attend_both(batch, pool, heads, kv_heads, dim, AttentionSpec(dim**-0.5), dtype, tiles)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 8, 64, 100])
@pytest.mark.parametrize(("dtype", "tiles"), WAYS)
def test_windows_and_caps_equal_the_reference(
    window: int | None, softcap: float | None, dtype: torch.dtype, tiles: bool
) -> None:
    plan, pool = plan_of(SLICES)
    batch = build_batch(plan, BLOCK, CPU)
    spec = AttentionSpec(0.7, window, softcap)
    got, expected = attend_both(batch, pool, 6, 2, 32, spec, dtype, tiles)
    torch.testing.assert_close(got, expected, rtol=0, atol=2 * TOLERANCE[dtype] * float(expected.abs().max()))


@pytest.mark.parametrize(("dtype", "tiles"), WAYS)
@pytest.mark.parametrize("seen", [7, 8])
def test_rows_see_nothing_of_their_neighbours(seen: int, dtype: torch.dtype, tiles: bool) -> None:
    alone = []
    for slices in ((SLICES[seen],), SLICES):
        plan, pool = plan_of(slices)
        batch = build_batch(plan, BLOCK, CPU)
        slices_of_both = (*batch.chunks, *batch.decodes)
        place = next(rows for rows in slices_of_both if (rows.offset, rows.stop - rows.start) == SLICES[seen])
        cache = KVCache([LayerShape(1, 64, 64)], pool.num_blocks, BLOCK, dtype, CPU)
        slots = [block * BLOCK + i for block in place.blocks for i in range(BLOCK)][: place.offset]
        generator = torch.Generator().manual_seed(1)
        cache.keys[0][slots] = torch.randn(len(slots), 1, 64, generator=generator).to(dtype)
        cache.values[0][slots] = torch.randn(len(slots), 1, 64, generator=generator).to(dtype)
        query = torch.full((len(batch.input_ids), 2, 64), torch.nan, dtype=dtype)  # all others are broken
        key, value = query[:, :1].clone(), query[:, :1].clone()
        for tensor in (query, key, value):
            own = tensor[place.start : place.stop]
            own.copy_(torch.randn(own.shape, generator=generator).to(dtype))
        got = attention_of(dtype, tiles).begin(batch, cache).attend(0, query, key, value, AttentionSpec(0.1))
        alone.append(got[place.start : place.stop])
    assert alone[0].isfinite().all()
    assert torch.equal(*alone)


def test_scores_far_apart_do_not_overflow() -> None:
    plan, pool = plan_of(SLICES)
    batch = build_batch(plan, BLOCK, CPU)
    got, expected = attend_both(batch, pool, 2, 1, 64, AttentionSpec(40.0), torch.float32)
    torch.testing.assert_close(got, expected, rtol=0, atol=3e-4)


def rows_of(dtype: torch.dtype, *shape: int) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 3).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (3, 50), (64, 64), (100, 1000)])
class TestElementWise:
    """Each against its formula in float32, rounded once."""

    def test_normalise(self, rows: int, width: int, dtype: torch.dtype) -> None:
        residual, weight = rows_of(dtype, rows, width), rows_of(dtype, width)
        added = -2 * residual.flip(0)
        total = residual + added
        expected = total.float() * torch.rsqrt(total.float().square().mean(1, keepdim=True) + 1e-5) * weight.float()
        got = Kernels(dtype).normalise(residual, added, weight, 1e-5)
        assert torch.equal(residual, total)
        torch.testing.assert_close(got, expected.to(dtype), rtol=8e-3 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)
        again = Kernels(dtype).normalise(residual, None, weight, 1e-5)
        assert torch.equal(again, got)
        assert torch.equal(residual, total)

    def test_gate(self, rows: int, width: int, dtype: torch.dtype) -> None:
        both = rows_of(dtype, rows, 2 * width)
        both[0, 0], both[0, 1] = -200.0, 200.0
        gate, up = both.float().chunk(2, 1)
        expected = torch.nn.functional.silu(gate) * up
        got = Kernels(dtype).gate(both)
        torch.testing.assert_close(got, expected.to(dtype), rtol=8e-3 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)

    def test_largest(self, rows: int, width: int, dtype: torch.dtype) -> None:
        scores = rows_of(dtype, rows, width)
        assert torch.equal(Kernels(dtype).largest(scores, width - 3), scores[:, : width - 3].float().argmax(1))


def test_largest_takes_the_first_of_equals_and_never_a_nan() -> None:
    nan, inf = torch.nan, torch.inf
    scores = torch.tensor(
        [
            [nan, 1.0, 7.0, 7.0] + [0.0] * 30 + [7.0],
            [-inf] * 34 + [-1e30],
            [nan] * 35,
            [nan] + [-inf] * 34,
            [1.0, inf, 2.0] + [nan] * 32,
        ]
    )
    assert Kernels(torch.float32).largest(scores, 35).tolist() == [2, 34, 0, 0, 1]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dim", [16, 24, 64])
def test_rotation_equals_its_formula(dim: int, normed: bool, dtype: torch.dtype) -> None:
    heads, kv_heads, rows = 3, 2, 40
    qkv = rows_of(dtype, rows, (heads + 2 * kv_heads) * dim)
    angles = torch.rand(rows, dim // 2, generator=torch.Generator().manual_seed(0)) * 6
    weights = [rows_of(dtype, dim) for _ in range(2)] if normed else [None, None]
    x = qkv.float().view(rows, -1, dim).clone()
    for weight, part in zip(weights, x.split((heads, kv_heads, kv_heads), dim=1), strict=False):
        if weight is not None:
            scale = torch.rsqrt(part.square().mean(-1, keepdim=True) + 1e-6)
            part.copy_((part * scale * weight.float()).to(dtype))
    turned = x[:, : heads + kv_heads]
    a, b = turned.chunk(2, -1)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    turned.copy_(torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1))
    Kernels(dtype).rotate(qkv, heads, kv_heads, angles.cos(), angles.sin(), *weights, 1e-6)
    torch.testing.assert_close(qkv.float(), x.flatten(1), rtol=0, atol=TOLERANCE[dtype] * float(x.abs().max()))


@pytest.mark.parametrize(("group", "chosen"), [(64, PagedAttention), (65, ReferenceAttention)])
def test_more_query_heads_than_the_kernels_take_are_left_to_the_reference(group: int, chosen: type[Any]) -> None:
    shapes = [LayerShape(1, 64, 64, group)]
    assert type(backend.make_attention(CPU, torch.float32, shapes)) is chosen


def test_on_a_gpu_no_plan_is_compiled_for_each_shape() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    chosen = backend.make_attention(torch.device("cuda"), torch.bfloat16, [LayerShape(1, 64, 64)])
    assert isinstance(chosen, ReferenceAttention)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_model_with_many_heads_for_one_of_keys_passes_its_self_check() -> None:
    config = LlamaConfig(
        **sizes() | {"hidden_size": 144, "num_attention_heads": 72, "num_key_value_heads": 1, "head_dim": 16}
    )
    model = from_config(config)
    assert self_check(model, attention(model), model.layer_shapes()) < 1e-5


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None, reason="needs a g++ for processors of x86-64"
)
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3", "x86-64-v4", "cooperlake", "sapphirerapids"])
def test_the_kernels_are_made_for_other_processors_too(processor: str) -> None:
    """From no AVX to matrix tiles: what stands between conditions was never seen by the compiler of this machine."""
    flags = [flag for flag in compiled._FLAGS if flag not in ("-O3", "-march=native")]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = ["g++", *flags, f"-march={processor}", *warnings, "-fopenmp", "-fsyntax-only", str(compiled._SOURCE)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stderr


def test_without_a_compiler_the_reference_serves(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def refuse(dtype: torch.dtype) -> PagedAttention:
        raise NotCompiledError("no C++ compiler was found")

    monkeypatch.setattr(backend.paged, "PagedAttention", refuse)
    chosen = backend.make_attention(CPU, torch.float32, [LayerShape(1, 64, 64)])
    assert isinstance(chosen, ReferenceAttention)
    assert "no C++ compiler was found" in caplog.text


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    compiled.load_kernels.cache_clear()
    with pytest.raises(NotCompiledError, match="no C\\+\\+ compiler was found \\(looked for g\\+\\+"):
        compiled.load_kernels()


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path / "cache"))
    compiled.load_kernels.cache_clear()
    with pytest.raises(NotCompiledError, match=re.escape(str(tmp_path / "cache"))):
        compiled.load_kernels()


def test_a_compiler_that_fails_leaves_nothing_and_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exit 0\nprintf 'kernels.cpp:1: \\342\\200\\230x\\377 is broken' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path / "cache"))
    compiled.load_kernels.cache_clear()
    with pytest.raises(NotCompiledError, match=r"kernels\.cpp:1: \u2018x\ufffd is broken"):
        compiled.load_kernels()
    assert not [file for file in (tmp_path / "cache" / "kernels").iterdir() if file.suffix != ".lock"]
