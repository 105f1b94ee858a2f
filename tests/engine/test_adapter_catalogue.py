"""The operator's list decides which adapters there are, also while requests run."""

import logging
import time
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from orthrus_backend.adapter_catalogue import AdapterCatalogue
from orthrus_backend.adapters import Adapter, load_adapter
from tests.engine.test_adapters import build, save


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return build("llama")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three adapters, and an empty list of them."""
    for seed, name in enumerate(("one", "two", "three")):
        save(tmp_path / name, seed=seed)
    (tmp_path / "adapters.txt").write_text("")
    return tmp_path


def catalogue(model: PreTrainedModel, folder: Path, **fixed: str) -> AdapterCatalogue:
    def load(name: str, path: Path) -> Adapter:
        return load_adapter(name, path, model, torch.float32, "cpu")

    return AdapterCatalogue(load, fixed, folder / "adapters.txt")


def write(folder: Path, *lines: str) -> None:
    (folder / "adapters.txt").write_text("".join(line + "\n" for line in lines))


def test_the_list_is_read_at_start_beside_what_is_given(model: PreTrainedModel, folder: Path) -> None:
    write(folder, "# tuned in May", "", "a = one")
    adapters = catalogue(model, folder, b=str(folder / "two"))
    assert sorted(adapters) == ["a", "b"]
    assert adapters["a"].name == "a"


def test_names_are_told_at_once_and_after_each_change(model: PreTrainedModel, folder: Path) -> None:
    adapters = catalogue(model, folder, b=str(folder / "two"))
    told: list[list[str]] = []
    try:
        adapters.watch(lambda names: told.append(sorted(names)))
        write(folder, "a=one")
        deadline = time.monotonic() + 20
        while len(told) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        adapters.close()
    assert told == [["b"], ["a", "b"]]


def test_a_change_loads_what_is_new_or_moved_and_forgets_what_is_gone(model: PreTrainedModel, folder: Path) -> None:
    write(folder, "a=one", "b=two")
    adapters = catalogue(model, folder, fixed=str(folder / "one"))
    a, b, fixed = adapters["a"], adapters["b"], adapters["fixed"]
    adapters.refresh()
    assert adapters["a"] is a
    write(folder, "a=one", "b=three", "c=two")
    adapters.refresh()
    assert sorted(adapters) == ["a", "b", "c", "fixed"]
    assert adapters["a"] is a
    assert adapters["fixed"] is fixed
    assert adapters["b"] is not b
    layer = next(iter(b.layers))
    assert not torch.equal(adapters["b"].layers[layer].a, b.layers[layer].a)
    write(folder, "c=two")
    adapters.refresh()
    assert sorted(adapters) == ["c", "fixed"]


@pytest.mark.parametrize(
    ("lines", "fault", "kept"),
    [
        (["a=one", "what?"], "'what?' is not of the form name=path", ["a", "b"]),
        (["a=one", "a=two"], "adapter 'a' is given twice", ["a", "b"]),
        (["fixed=one"], "adapter 'fixed' is given by the parameter adapters already", ["a", "b"]),
        (["a=nowhere", "c=three"], "adapter 'a': ", ["a", "c"]),  # what can be done is done; a keeps its version
    ],
)
def test_a_fault_in_a_change_is_logged_and_what_was_served_stays(
    model: PreTrainedModel,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    lines: list[str],
    fault: str,
    kept: list[str],
) -> None:
    write(folder, "a=one", "b=two")
    adapters = catalogue(model, folder, fixed=str(folder / "one"))
    a = adapters["a"]
    write(folder, *lines)
    with caplog.at_level(logging.ERROR):
        adapters.refresh()
        adapters.refresh()
    assert [fault in record.message for record in caplog.records] == [True]  # once, not every second
    assert sorted(adapters) == [*kept, "fixed"]
    assert adapters["a"] is a
    write(folder, "a=two")
    adapters.refresh()
    assert sorted(adapters) == ["a", "fixed"]
    assert adapters["a"] is not a


def test_a_list_that_disappears_takes_nothing_with_it(
    model: PreTrainedModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, "a=one")
    adapters = catalogue(model, folder)
    (folder / "adapters.txt").unlink()
    adapters.refresh()
    assert list(adapters) == ["a"]
    assert "cannot read adapters_file" in caplog.text


@pytest.mark.parametrize(
    ("lines", "fault"),
    [(["a=nowhere"], "adapter 'a': "), (["nonsense"], "'nonsense' is not of the form name=path")],
)
def test_a_fault_at_start_is_an_error(model: PreTrainedModel, folder: Path, lines: list[str], fault: str) -> None:
    write(folder, *lines)
    with pytest.raises(ValueError, match=fault):
        catalogue(model, folder)
