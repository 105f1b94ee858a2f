"""An adapter that makes an embedder of the model that generates: embeddings have it, generations do not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModel, AutoTokenizer

from orthrus_backend.assembly import Service, build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.params import EmbeddingParams, SamplingParams
from tests.engine.sentence_folders import embed
from tests.small_model import TEXTS, save_small_model


def save_adapter(folder: Path, model: Path, pooling: str | None, seed: int) -> Path:
    """A PEFT adapter with random factors; with `pooling`, Sentence Transformers' files say how to embed with it."""
    network = AutoModel.from_pretrained(model, dtype=torch.float32)
    peft = get_peft_model(network, LoraConfig(target_modules="all-linear"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    peft.save_pretrained(folder)
    if pooling:
        kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
        modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({"embedding_dimension": 64, "pooling_mode": pooling})
        )
    return folder


def reference(model: Path, adapter: Path | None, pooling: str) -> np.ndarray:
    """What PEFT makes of `TEXTS`, one at a time: [texts, D]."""
    network = AutoModel.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        network = PeftModel.from_pretrained(network, adapter)
    tokenizer = AutoTokenizer.from_pretrained(model)
    vectors = []
    for text in TEXTS:
        with torch.inference_mode():
            hidden = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        pooled = hidden.mean(0) if pooling == "mean" else hidden[-1]
        vectors.append((pooled / pooled.norm()).numpy())
    return np.stack(vectors)


@contextmanager
def serving(model: Path, **parameters: str) -> Iterator[Service]:
    service = build_service(
        EngineSettings.from_parameters({"model": str(model), "dtype": "float32", "kv_memory": "1MiB", **parameters})
    )
    yield service
    service.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("pooling", [None, "lasttoken"])
def test_texts_get_it_unless_they_name_another_or_none(model: Path, tmp_path: Path, pooling: str | None) -> None:
    own, other = save_adapter(tmp_path / "own", model, pooling, 1), save_adapter(tmp_path / "other", model, None, 2)
    how = pooling or "mean"
    with serving(model, embedding_adapter=str(own), adapters=f"other={other}") as service:
        for name, adapter in ((None, own), ("other", other), ("", None)):
            wanted = reference(model, adapter, how)
            np.testing.assert_allclose(embed(service, TEXTS, adapter=name), wanted, rtol=0, atol=1e-5)


def test_generations_do_not_have_it(model: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path, model, None, 1)
    with serving(model, embedding_adapter=str(adapter)) as service:
        assert service.intake.generate(TEXTS[1], SamplingParams(max_tokens=1)).adapter is None
        assert service.intake.embed(TEXTS[1], EmbeddingParams()).adapter is not None


def test_a_model_without_one_embeds_as_it_is(model: Path) -> None:
    with serving(model) as service:
        np.testing.assert_allclose(embed(service, TEXTS), reference(model, None, "mean"), rtol=0, atol=1e-5)


def test_what_cannot_be_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"embedding_adapter 'a' .*embedding_model 'b'"):
        EngineSettings.from_parameters({"embedding_adapter": "a", "embedding_model": "b"})
    with pytest.raises(ValueError, match=r"adapter 'embedding': .*adapter_config.json"):
        build_service(EngineSettings.from_parameters({"model": str(model), "embedding_adapter": str(tmp_path)}))
