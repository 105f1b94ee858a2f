"""The fused decoder is the model's own code, only faster: with adapters too, and with one copy of the weights."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from orthrus_backend.acceleration import accelerate
from orthrus_backend.adapters import load_adapter
from orthrus_backend.assembly import load_model
from orthrus_backend.config import EngineSettings, ModelSettings
from orthrus_backend.fused.matrix import Matrix
from orthrus_backend.model import Backbone
from orthrus_backend.native.products import have_tiles
from orthrus_backend.self_check import self_check
from tests.engine.plain import plain_hidden
from tests.engine.tiny import Bench, backbone, computation, configs, embed, random_ids
from tests.small_model import save_small_model

FUSED = sorted(name for name in configs() if name.startswith(("llama", "mistral", "qwen2")))


@pytest.mark.parametrize("family", sorted(configs()))
def test_llama_like_families_are_fused_and_others_left_as_they_are(family: str) -> None:
    expected = family in (*FUSED, "qwen3-wide")  # the other qwen3 has heads that no kernel knows
    assert (computation(backbone(family)).fused is not None) == expected


@pytest.mark.parametrize("family", [*FUSED, "qwen3-wide"])
def test_hidden_states_equal_the_models_own(family: str) -> None:
    model, other = backbone(family), backbone(family)
    computed = computation(model)
    assert computed.fused is not None
    computed.fused.take_over()  # the weights are its own from here on
    ids = random_ids(150, seed=3)
    request = embed(ids, "last")
    vector = Bench(model, token_budget=70, chunk_size=37).run([request])[request]
    expected = plain_hidden(other, ids)[-1]
    torch.testing.assert_close(torch.from_numpy(vector), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_a_fused_decoder_that_is_wrong_does_not_pass_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backbone("qwen2")
    computed = accelerate(model, model.layer_shapes())
    right = Matrix.__call__
    monkeypatch.setattr(Matrix, "__call__", lambda self, x: right(self, x) * 1.01)
    with pytest.raises(ValueError, match="gives other results"):
        self_check(model, computed.attention, model.layer_shapes())


def save_adapter(folder: Path, family: str, targets: list[str], rank: int) -> Path:
    """A PEFT adapter with random factors."""
    peft = get_peft_model(backbone(family).model, LoraConfig(r=rank, target_modules=targets))
    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    peft.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen3-wide"])
def test_adapters_on_parts_of_merged_products_equal_peft(family: str, tmp_path: Path) -> None:
    targets = (["q_proj"], ["k_proj", "up_proj"], ["v_proj", "o_proj", "gate_proj", "down_proj"])
    folders = [save_adapter(tmp_path / str(i), family, names, rank=4 + i) for i, names in enumerate(targets)]
    model = backbone(family)
    adapters = [load_adapter("a", folder, model.model, torch.float32, "cpu") for folder in folders]
    ids = random_ids(30, seed=1)
    requests = [embed(ids, "last", adapter) for adapter in (*adapters, None)]
    results = Bench(model).run(requests)
    wrapped = [PeftModel.from_pretrained(backbone(family).model, folder).base_model.model for folder in folders]
    expected = [plain_hidden(Backbone(peft, model.device), ids)[-1] for peft in wrapped]
    expected.append(plain_hidden(backbone(family), ids)[-1])
    assert all(not torch.allclose(one, expected[-1], atol=1e-2) for one in expected[:-1]), "an adapter changes nothing"
    for request, vector in zip(requests, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(results[request]), vector, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not have_tiles(), reason="this processor has no matrix tiles")
@pytest.mark.parametrize("family", [*FUSED, "qwen3-wide"])
def test_on_tiles_a_text_is_the_same_beside_adapters_and_alone(family: str, tmp_path: Path) -> None:
    model = backbone(family, torch.bfloat16)
    computed = computation(model)
    assert computed.fused is not None
    assert self_check(model, computed.attention, model.layer_shapes()) < 0.1
    targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
    adapter = load_adapter("a", save_adapter(tmp_path, family, targets, 4), model.model, torch.bfloat16, "cpu")
    ids = random_ids(40, seed=1)
    alone, beside, adapted = embed(ids, "last"), embed(ids, "last"), embed(ids, "last", adapter)
    results = Bench(model, chunk_size=40, token_budget=100).run([alone])
    results |= Bench(model, chunk_size=40, token_budget=100).run([adapted, beside])
    assert (results[alone] == results[beside]).all()
    peft = PeftModel.from_pretrained(backbone(family).model, tmp_path).base_model.model
    expected = plain_hidden(Backbone(peft, model.device), ids)[-1]
    got = torch.from_numpy(results[adapted]).float()
    assert torch.nn.functional.cosine_similarity(got, expected, dim=0) > 0.99


@pytest.mark.skipif(not have_tiles(), reason="this processor has no matrix tiles")
def test_on_tiles_adapters_of_several_ranks_share_a_batch_each_as_alone(tmp_path: Path) -> None:
    model = backbone("llama", torch.bfloat16)
    targets = {4: ["q_proj", "up_proj"], 40: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]}
    folders = {rank: save_adapter(tmp_path / str(rank), "llama", names, rank) for rank, names in targets.items()}
    few, many = (load_adapter("a", folder, model.model, torch.bfloat16, "cpu") for folder in folders.values())
    texts = [(few, 20), (many, 33), (few, 7), (None, 40), (many, 1), (few, 50)]
    alone, beside = (
        [embed(random_ids(length, seed=i), "last", adapter) for i, (adapter, length) in enumerate(texts)] for _ in "12"
    )
    results = Bench(model, chunk_size=64, token_budget=200).run(beside)
    for one, other, (adapter, length) in zip(alone, beside, texts, strict=True):
        results |= Bench(model, chunk_size=64, token_budget=200).run([one])
        assert (results[one] == results[other]).all(), f"{length} tokens"
        reference = backbone("llama")
        if adapter is not None:
            folder = folders[4 if adapter is few else 40]
            wrapped = PeftModel.from_pretrained(reference.model, folder).base_model.model
            reference = Backbone(wrapped, model.device)
        expected = plain_hidden(reference, random_ids(length, seed=texts.index((adapter, length))))[-1]
        got = torch.from_numpy(results[other]).float()
        assert torch.nn.functional.cosine_similarity(got, expected, dim=0) > 0.99


def test_a_loaded_model_holds_its_weights_once(tmp_path: Path) -> None:
    settings = EngineSettings(model=ModelSettings(dtype="float32", device="cpu"))
    loaded = load_model(str(save_small_model(tmp_path)), settings, head=False)
    assert loaded.computation.fused is not None
    layer = loaded.backbone.model.base_model.layers[0]
    assert {m.weight.device.type for m in layer.modules() if isinstance(m, torch.nn.Linear)} == {"meta"}
    assert loaded.backbone.model.base_model.embed_tokens.weight.device.type == "cpu"
