"""`make gpu-check` on this machine, in small shapes: that it runs, that it finds faults, and that it loses nothing."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from orthrus_backend.fused.matrix import Matrix
from orthrus_backend.kv_cache import LayerShape
from orthrus_backend.model import Backbone
from orthrus_backend.plan import Plan, Slice
from orthrus_backend.request import EmbedRequest, GenerateRequest
from tests.engine.tiny import backbone, computation, random_ids
from tools.gpu_check import checks, models, speed
from tools.gpu_check.__main__ import PARTS, Device, _work, main
from tools.gpu_check.bench import Bench
from tools.gpu_check.checks import LOADS, MOST_VECTOR_ERROR, Check, Pair
from tools.gpu_check.device import Card, Ceiling, describe
from tools.gpu_check.engine_tests import run_paths
from tools.gpu_check.models import Prepared, build, config_of, linear_layers, make_adapter
from tools.gpu_check.process import PartError, run_apart
from tools.gpu_check.roofline import Counts

PROJECT = Path(__file__).parent.parent
CPU = torch.device("cpu")


def test_all_of_it_runs_and_says_the_same_in_json_and_markdown(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.gpu_check", "--device=cpu", "--tiny", f"--out={tmp_path}"]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}  # others run tests beside this one
    done = subprocess.run(command, cwd=PROJECT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))
    shown = (tmp_path / "gpu-check.md").read_text(encoding="utf-8")
    assert done.stdout.strip() == shown.strip()
    assert document["faults"] == []
    assert "Nothing is wrong." in shown
    assert document["machine"]["packages"]["torch"] == torch.__version__
    assert document["tests"][0]["passed"] > 0
    assert {row["work"] for row in document["checks"]} == {*LOADS, "whole", "sampler"}
    assert {row["dtype"] for row in document["checks"]} == {"float32", "bfloat16", "float16"}
    for name in models.NAMES:
        found = {
            (row["work"], row["variant"]): row for row in document["speed"] if row["model"] == name and "work" in row
        }
        assert {variant for work, variant in found if work == "decode"} == {"1 running", "4 running", "16 running"}
        assert {variant for work, variant in found if work == "mixed"} == {"ibs", "fcfs", "homogeneous"}
        assert {variant.partition(", ")[2] for work, variant in found if work == "embed"} == {
            "no adapter",
            "rank 16",
            "rank 64",
        }
        assert all(row["roofline_seconds"] > 0 for row in found.values())
        assert f"### {name}" in shown


def test_make_passes_device_and_size_on() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "gpu-check", "DEVICE=cpu", "TINY=1", "ARGS=--only=checks"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].endswith("python -m tools.gpu_check --device=cpu --tiny --only=checks")


def test_a_part_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device_name: str, tiny: bool) -> Iterator[Check]:
        yield Check("llama", "float32", "packed")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(checks, "check", broken)
    with pytest.raises(SystemExit, match="1 faults, the first of them: checks: its process ended with status -9"):
        main(Device.CPU, tiny=True, only=["qwen2-7b", "checks"], out=tmp_path)
    document = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))
    assert [row["work"] for row in document["checks"]] == ["packed"]
    assert document["parts"] == ["checks", "qwen2-7b"]
    assert {row["model"] for row in document["speed"]} == {"qwen2-7b"}
    assert len(document["speed"]) > 10


def test_an_unknown_part_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"'speed' is none of {', '.join(PARTS)}"):
        main(only=["checks", "speed"], out=tmp_path)


def test_what_a_part_raises_is_told_after_what_it_found() -> None:
    def part() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("no third one")

    found = run_apart(part, anew=False)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(PartError, match="ValueError: no third one"):
        next(found)


def test_a_part_can_begin_anew_as_on_a_gpu() -> None:
    assert list(run_apart(partial(describe, "cpu"), anew=True)) == [Card("cpu", "", 0, "", "", 0)]
    ceilings = {"float32": Ceiling("float32", 1.0, 1.0)}
    assert all(pickle.dumps(_work(part, "cuda", False, ceilings)) for part in PARTS)


def test_a_measurement_that_fails_is_told_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Bench, running: int) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Bench, "decodes", full)
    rows = [row for row in speed.measure("mistral-7b", "cpu", True, {}) if isinstance(row, speed.Speed)]
    assert [row.fault for row in rows if row.work == "decode"] == ["OutOfMemoryError: no room"] * 3
    assert all(row.seconds > 0 and not row.fault for row in rows if row.work != "decode")
    assert {row.roofline_seconds for row in rows} == {None}  # nobody has measured the ceilings


TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2
def test_lacks_a_package(): import no_such_package
def test_lacks_the_model(): raise type("ModelFetchError", (Exception,), {})
@pytest.mark.skip(reason="for once")
def test_is_skipped(): pass
"""


def test_the_engines_tests_are_left_out_where_something_is_missing_and_else_failed(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_other.py").write_text("import no_such_package.part", encoding="utf-8")
    (tmp_path / "test_broken.py").write_text("import tools.no_such_module", encoding="utf-8")
    outcomes = run_paths([str(tmp_path)], (), "cpu")
    assert outcomes.passed == 1
    assert [len(names) for names in outcomes.failed.values()] == [1, 1]
    assert list(outcomes.failed) == ["ModuleNotFoundError: No module named 'tools.no_such_module'", "assert 1 == 2"]
    assert outcomes.fault.startswith("2 tests failed")
    assert {reason: len(names) for reason, names in outcomes.left_out.items()} == {
        "no_such_package is not installed": 2,
        "the default model is not there": 1,
        "Skipped: for once": 1,
    }


@pytest.mark.parametrize("work", LOADS)
def test_an_error_of_one_in_a_thousand_is_found_in_float32(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair("llama", torch.float32, CPU)
    vector_error, logprob_error = pair.errors(LOADS[work])
    assert max(vector_error, logprob_error) < 1e-5
    right = Matrix.__call__
    monkeypatch.setattr(Matrix, "__call__", lambda self, x: right(self, x) * 1.001)
    vector_error, _ = pair.errors(LOADS[work])
    assert vector_error > MOST_VECTOR_ERROR["float32"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("mistral-7b", 7_241_732_096),
        ("qwen2-7b", 7_615_616_512),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_shapes_have_the_parameters_that_the_models_are_known_by(name: str, parameters: int) -> None:
    model = build(config_of(name, tiny=False), torch.device("meta"), torch.bfloat16)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert all(parameter.is_meta for parameter in model.parameters())
    widths = {(576, 49152), (4096, 32000), (3584, 152064), (4096, 128256)}
    assert (model.config.hidden_size, model.config.vocab_size) in widths


def prepared(model: Backbone) -> Prepared:
    return Prepared(model, computation(model), model.layer_shapes(), "")


def test_operations_are_those_that_pytorch_counts() -> None:
    model = backbone("llama")
    counts, ids = Counts.of(prepared(model)), random_ids(40, 1)
    model.model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model.model.base_model(torch.tensor([ids]), use_cache=False)
    counted = counter.get_flop_counts()["Global"]
    products, attention = counted[torch.ops.aten.mm], counted[torch.ops.aten.bmm]  # of all keys with all rows
    cost = counts.cost(Plan((Slice(EmbedRequest("", ids, None, 0.0), 0, 40),)))
    assert cost.operations == products + attention * 41 / 80  # half of the square, and its diagonal
    assert cost.bytes == 4 * (counts.decoder + 40 * counts.hidden)  # nothing is kept


def test_a_decode_reads_all_weights_once_and_its_own_keys() -> None:
    model = prepared(backbone("llama"))
    counts, shape = Counts.of(model), LayerShape(2, 16, 16, group=2)
    assert model.shapes == [shape, shape]
    requests = [GenerateRequest("", random_ids(n, n), None, 0.0, prompt_length=n - 1) for n in (30, 50)]
    cost = counts.cost(Plan(tuple(Slice(request, request.total - 1, 1) for request in requests)))
    weights = sum(width_in * width_out for width_in, width_out in linear_layers(model.backbone.model).values())
    assert counts.decoder == weights == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    assert cost.operations == 2 * 2 * (weights + 199 * 64) + 2 * 4 * 64 * (30 + 50)
    assert cost.bytes == 4 * (weights + 199 * 64 + 2 * 64 + 2 * 64 * (30 + 50))
    slow, narrow = Ceiling("float32", 1.0, 1e30), Ceiling("float32", 1e30, 1.0)
    assert (cost.seconds(slow), cost.limited_by(slow)) == (cost.operations, "operations")
    assert (cost.seconds(narrow), cost.limited_by(narrow)) == (cost.bytes, "memory bandwidth")


def test_an_adapter_costs_its_rows_and_is_read_once() -> None:
    model = backbone("llama")
    counts, adapter = Counts.of(prepared(model)), make_adapter("a", model, 16)
    size = 16 * sum(map(sum, linear_layers(model.model).values()))
    plans = [
        Plan(tuple(Slice(EmbedRequest("", random_ids(10, n), chosen, 0.0), 0, 10) for n in range(2)))
        for chosen in (None, adapter)
    ]
    plain, adapted = map(counts.cost, plans)
    assert adapted.operations - plain.operations == 2 * size * 20
    assert adapted.bytes - plain.bytes == 4 * size
