"""Models come from safetensors or GGUF, whole or in shards, and from nothing that could run code."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import models as families

from orthrus_backend.assembly import build_service
from orthrus_backend.config import EngineSettings, ModelSettings
from orthrus_backend.model import Backbone, load_backbone
from orthrus_backend.outputs import Output, Produced
from orthrus_backend.params import SamplingParams
from orthrus_backend.self_check import self_check
from orthrus_backend.tokenization import Tokenization
from tests.engine.test_engine import Inbox
from tests.engine.tiny import Bench, attention, backbone, configs, embed, generate, random_ids, sizes

PLAIN = ModelSettings(dtype="float32", device="cpu")


def save(folder: Path, family: str = "llama-tied", **options: Any) -> Backbone:
    """A tiny model on disk; returns the one that was saved."""
    saved = backbone(family)
    saved.model.save_pretrained(folder, **options)
    return saved


def answers(model: Backbone) -> list[Any]:
    bench = Bench(model)
    results = bench.run([embed(random_ids(30, 1)), generate(random_ids(20, 2))])
    return [list(result) for result in results.values()]


def test_sharded_safetensors_equal_whole_ones(tmp_path: Path) -> None:
    save(tmp_path / "whole")
    save(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    whole, shards = (load_backbone(str(tmp_path / name), PLAIN) for name in ("whole", "shards"))
    assert answers(whole) == answers(shards) == answers(backbone("llama-tied"))


def test_float32_is_no_shorter_format_whatever_the_environment_says(tmp_path: Path) -> None:
    save(tmp_path)
    torch.set_float32_matmul_precision("medium")
    load_backbone(str(tmp_path), PLAIN)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save(tmp_path, max_shard_size="40KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=rf"cannot be loaded: .*{lost.name}"):
        load_backbone(str(tmp_path), PLAIN)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_backbone(str(tmp_path), PLAIN)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_folder_with_only_a_pickle_is_refused_by_name(name: str, tmp_path: Path) -> None:
    saved = save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(saved.model.state_dict(), tmp_path / name.removesuffix(".index.json"))
    if name.endswith(".json"):
        weights = dict.fromkeys(saved.model.state_dict(), "pytorch_model.bin")
        (tmp_path / name).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle.*save the model as safetensors"):
        load_backbone(str(tmp_path), PLAIN)


@pytest.mark.parametrize("family", ["llama-tied", "llama", "gpt2"])
def test_a_tied_head_loads_tied_and_an_untied_one_does_not(family: str, tmp_path: Path) -> None:
    save(tmp_path, family)
    model = load_backbone(str(tmp_path), PLAIN).model
    head, embeddings = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (head.data_ptr() == embeddings.data_ptr()) == configs()[family].tie_word_embeddings


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    saved = save(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert answers(load_backbone(str(tmp_path), PLAIN)) == answers(saved)


@pytest.mark.parametrize("family", ["llama", "family-of-its-own"])
def test_code_that_comes_with_a_model_is_never_run(family: str, tmp_path: Path) -> None:
    saved = save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    classes = {name: f"code.{name}" for name in ("AutoConfig", "AutoModel", "AutoModelForCausalLM")}
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": family, "auto_map": classes}))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": [None, "code.Tokenizer"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    if family == "llama":
        assert answers(load_backbone(str(tmp_path), PLAIN)) == answers(saved)
        assert Tokenization(str(tmp_path), saved.model.config).encode("a") == [0]
    else:
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_backbone(str(tmp_path), PLAIN)
    assert not (tmp_path / "ran").exists()


def write_gguf(path: Path, model: Any) -> None:
    """A llama.cpp file of a tiny Qwen2, in float32, with a tokenizer of single letters."""
    config, arch = model.config, gguf.MODEL_ARCH.QWEN2
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{n}>" for n in range(config.vocab_size)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_equals_the_model_it_was_made_of(tmp_path: Path) -> None:
    original = backbone("qwen2")
    write_gguf(tmp_path / "tiny.gguf", original.model)
    loaded = load_backbone(str(tmp_path / "tiny.gguf"), PLAIN)
    assert self_check(loaded, attention(loaded), loaded.layer_shapes()) < 1e-5
    assert answers(loaded) == answers(original)


def test_a_model_that_cannot_be_exact_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    families.LlamaConfig(**sizes(), rope_parameters=rope).save_pretrained(tmp_path)  # and no weights at all
    with pytest.raises(ValueError, match="'dynamic' position embedding cannot be served"):
        load_backbone(str(tmp_path), PLAIN)


@pytest.mark.parametrize("missing", ["nothing-here", "nothing-here/model.gguf"])
def test_what_is_not_there_is_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing-here"):
        load_backbone(str(tmp_path / missing), PLAIN)


def padded_model(folder: Path) -> None:
    """100 letters for a head of 199 rows, of which those past the tokenizer are the likeliest."""
    words = {chr(0x4E00 + n): n for n in range(100)}
    letters = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configs()["llama"])
    with torch.no_grad():
        model.lm_head.weight[100:] *= 50
    model.save_pretrained(folder)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1}, {"seed": 1, "top_p": 0.9, "logprobs": 5}])
def test_a_padded_vocabulary_never_yields_an_undecodable_id(params: dict[str, Any], tmp_path: Path) -> None:
    padded_model(tmp_path)
    settings = {"model": str(tmp_path), "dtype": "float32", "kv_memory": "4MiB"}
    service = build_service(EngineSettings.from_parameters(settings))
    request = service.intake.generate(
        [5, 6, 7], SamplingParams.from_mapping({"max_tokens": 60, "ignore_eos": True} | params)
    )
    request.reply = inbox = Inbox()
    service.engine.submit([request])
    inbox.outcome()
    service.engine.close()
    tokens = [output.token for output in produced(inbox.outputs)]
    assert len(tokens) == 60
    offered = {token.token for token in tokens} | {token for t in tokens for token, _ in t.top}
    assert all(service.tokenization.backend.id_to_token(token) is not None for token in offered)
    with pytest.raises(ValueError, match="token id 100 is outside the vocabulary of 100"):
        service.intake.generate([100], SamplingParams())


def produced(outputs: list[Output]) -> list[Produced]:
    return [output for output in outputs if isinstance(output, Produced)]
