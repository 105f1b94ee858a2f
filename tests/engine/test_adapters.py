"""LoRA against PEFT itself, on tiny random models."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from orthrus_backend.adapters import Adapter, AdapterHooks, load_adapter

SIZES: dict[str, Any] = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(
        **SIZES, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2
    ),
    "gpt2": GPT2Config(**SIZES, n_embd=32, n_layer=3, n_head=4),
    "opt": OPTConfig(
        **SIZES, hidden_size=32, ffn_dim=48, num_hidden_layers=3, num_attention_heads=4, word_embed_proj_dim=32
    ),
}
ATTENTION = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"], "opt": ["q_proj", "out_proj"]}
IDS = torch.arange(1, 12)[None]  # [1, 11]


def build(family: str, base: bool = False, seed: int = 0) -> PreTrainedModel:
    """The same weights every time, as the bare base model or with its head."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family], attn_implementation="eager").eval()
    if not base:
        return model
    bare = AutoModel.from_config(CONFIGS[family], attn_implementation="eager").eval()
    bare.load_state_dict(model.base_model.state_dict())
    return bare


def save(folder: Path, family: str = "llama", base: bool = False, seed: int = 1, **config: Any) -> Path:
    """A PEFT adapter with random factors, saved from a model of its own."""
    config.setdefault("target_modules", ATTENTION[family])
    peft = get_peft_model(build(family, base), LoraConfig(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    peft.save_pretrained(folder)
    return folder


def hidden(model: PreTrainedModel, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return model.base_model(input_ids=ids, use_cache=False).last_hidden_state  # [1, T, d]


def by_peft(folder: Path, family: str, base: bool = False, ids: Tensor = IDS) -> Tensor:
    model = PeftModel.from_pretrained(build(family, base), folder).eval()
    with torch.no_grad():
        inner = model.base_model.model
        return inner.base_model(input_ids=ids, use_cache=False).last_hidden_state


def load(folder: Path, model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Adapter:
    return load_adapter("a", folder, model, dtype, "cpu")


def by_orthrus(folder: Path, family: str, base: bool = False, ids: Tensor = IDS) -> Tensor:
    model = build(family, base)
    with AdapterHooks(model).active([(load(folder, model), 0, ids.shape[1])]):
        return hidden(model, ids)


def assert_equals_peft(folder: Path, family: str = "llama", base: bool = False) -> None:
    expected = by_peft(folder, family, base)
    assert not torch.allclose(expected, hidden(build(family, base)), atol=1e-3), "the adapter changes nothing"
    torch.testing.assert_close(by_orthrus(folder, family, base), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("saved_bare", "served_bare"), [(False, False), (True, True), (True, False), (False, True)])
def test_equals_peft_saved_and_served_with_and_without_a_head(
    family: str, saved_bare: bool, served_bare: bool, tmp_path: Path
) -> None:
    folder = save(tmp_path, family, saved_bare, r=4, lora_alpha=16)
    expected = by_peft(folder, family, saved_bare)
    torch.testing.assert_close(by_orthrus(folder, family, served_bare), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"r": 64, "lora_alpha": 32},
        {"r": 16, "use_rslora": True},
        {"rank_pattern": {"layers.1.self_attn.q_proj": 4, "v_proj": 12}, "alpha_pattern": {r".*\.2\..*q_proj": 40}},
        {"rank_pattern": {"^model.layers.0.self_attn.v_proj": 2}, "use_rslora": True},
        {"target_modules": r".*\.[02]\..*(q_proj|down_proj)"},
        {"target_modules": "all-linear"},
        {"target_modules": ["model.layers.0.mlp.up_proj", "o_proj"]},
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"]},
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": r".*\.0\..*"},
        {"layers_to_transform": [0, 2]},
        {"layers_to_transform": 1, "layers_pattern": "layers"},
        {"init_lora_weights": "gaussian", "lora_dropout": 0.3, "task_type": "CAUSAL_LM", "fan_in_fan_out": False},
    ],
    ids=str,
)
def test_every_honoured_field_equals_peft(config: dict[str, Any], tmp_path: Path) -> None:
    assert_equals_peft(save(tmp_path, **config))


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_all_linear_equals_peft_on_other_layouts(family: str, tmp_path: Path) -> None:
    assert_equals_peft(save(tmp_path, family, target_modules="all-linear", fan_in_fan_out=family == "gpt2"), family)


def test_the_shorthand_all_linear_is_understood_in_a_file(tmp_path: Path) -> None:
    folder = save(tmp_path, target_modules="all-linear")
    edit(folder, target_modules="all-linear")
    assert_equals_peft(folder)


def packed(model: PreTrainedModel, texts: list[Tensor]) -> Tensor:
    """Hidden states [1, T, d] of several texts in one pass, none of which sees another."""
    text = torch.cat([torch.full((len(ids),), i) for i, ids in enumerate(texts)])  # [T]
    visible = (text[:, None] == text) & torch.ones(len(text), len(text), dtype=torch.bool).tril()  # [T, T]
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]
    positions = torch.cat([torch.arange(len(ids)) for ids in texts])[None]
    with torch.no_grad():
        return model.base_model(
            input_ids=torch.cat(texts)[None], position_ids=positions, attention_mask=mask, use_cache=False
        ).last_hidden_state


@pytest.mark.parametrize("family", CONFIGS)
def test_texts_of_one_packed_batch_each_get_their_own_adapter(family: str, tmp_path: Path) -> None:
    ranks = {"a": 4, "b": 16, "c": 64}
    folders = {n: save(tmp_path / n, family, r=r, seed=r, target_modules="all-linear") for n, r in ranks.items()}
    model = build(family)
    a, b, c = (load(folder, model) for folder in folders.values())
    lengths = {"a": 5, None: 3, "b": 1, "c": 7}
    texts = [torch.randint(3, 97, (length,), generator=torch.Generator().manual_seed(9)) for length in lengths.values()]
    base = packed(model, texts)
    with AdapterHooks(model).active([(a, 0, 5), (b, 8, 9), (c, 9, 16)]):
        mixed = packed(model, texts)
    assert torch.equal(mixed[:, 5:8], base[:, 5:8])  # the base's rows, bit for bit
    for name, ids, rows in zip(lengths, texts, mixed[0].split(list(lengths.values())), strict=True):
        expected = by_peft(folders[name], family, ids=ids[None]) if name else hidden(build(family), ids[None])
        torch.testing.assert_close(rows, expected[0], atol=1e-5, rtol=1e-5)


def test_adapters_come_and_go_and_leave_the_base_as_it_was(tmp_path: Path) -> None:
    model = build("llama")
    weights = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    before = hidden(model)
    hooks = AdapterHooks(model)

    def hooked(*segments: tuple[Adapter, int, int]) -> set[str]:
        with hooks.active(segments):
            changed = hidden(model)
        assert torch.allclose(changed, before, atol=1e-3) == (not segments)
        assert torch.equal(hidden(model), before)
        return {name.split(".")[-1] for name, module in model.named_modules() if module._forward_hooks}

    a, b = (load(save(tmp_path / target, target_modules=[target]), model) for target in ("q_proj", "v_proj"))
    assert hooked() == set()
    assert hooked((a, 0, 11)) == {"q_proj"}
    assert hooked((b, 0, 11)) == {"q_proj", "v_proj"}
    del a
    assert hooked((b, 0, 11)) == {"v_proj"}
    del b
    assert hooked() == set()
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_an_error_in_a_step_leaves_no_adapter_active(tmp_path: Path) -> None:
    model = build("llama")
    before, hooks, adapter = hidden(model), AdapterHooks(model), load(save(tmp_path), model)
    with pytest.raises(RuntimeError, match="boom"), hooks.active([(adapter, 0, 11)]):
        raise RuntimeError("boom")
    assert torch.equal(hidden(model), before)


def test_bfloat16_factors_stay_near_float32(tmp_path: Path) -> None:
    folder = save(tmp_path, r=8)
    model = build("llama").bfloat16()
    with AdapterHooks(model).active([(load(folder, model, torch.bfloat16), 0, 11)]):
        got = hidden(model).float()
    expected = by_peft(folder, "llama")
    assert torch.nn.functional.cosine_similarity(got, expected, dim=-1).min() > 0.999


def edit(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "adapter_model.safetensors"
    save_file(change({name: tensor.clone() for name, tensor in load_file(path).items()}), path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "LOHA"),
        ("bias", "lora_only"),
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1, 2]),
        ("alora_invocation_tokens", [5]),
        ("megatron_config", {"tp": 2}),
        ("lora_bias", True),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("layer_replication", [[0, 2]]),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("arrow_config", {"top_k": 3}),
        ("some_future_field", 7),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("target_modules", None),
        ("target_modules", "(unclosed"),
        ("r", 0),
        ("lora_alpha", "many"),
        ("rank_pattern", {"q_proj": -1}),
    ],
)
def test_fields_that_cannot_be_honoured_are_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    folder = save(tmp_path)
    edit(folder, **{field: value})
    with pytest.raises(ValueError, match=rf"adapter 'mine'.*{field}"):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")


def test_fields_that_are_off_are_harmless(tmp_path: Path) -> None:
    folder = save(tmp_path)
    edit(folder, some_future_field=None, another=False, use_dora=False, modules_to_save=[], loftq_config={})
    assert_equals_peft(folder)


Q = "base_model.model.model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {}, "has no tensors"),
        (lambda t: t | {f"{Q}.lora_magnitude_vector": torch.ones(3)}, "lora_magnitude_vector"),
        (lambda t: t | {"base_model.model.lm_head.weight": torch.ones(3)}, "lm_head.weight"),
        (lambda t: t | {f"{Q}.lora_A.weight": torch.ones(8, 33)}, r"layers.1.self_attn.q_proj.lora_A.*\(8, 33\)"),
        (lambda t: t | {f"{Q}.lora_B.weight": torch.ones(32, 4)}, r"q_proj.lora_B.weight.*\(32, 4\).*\(32, 8\)"),
        (lambda t: t | {f"{Q}.lora_A.weight": torch.full((8, 32), torch.nan)}, "not finite"),
        (lambda t: {n: v for n, v in t.items() if n != f"{Q}.lora_B.weight"}, "q_proj.lora_B.weight is missing"),
        (lambda t: {n: v for n, v in t.items() if Q not in n}, "layers.1.self_attn.q_proj' is selected"),
        (
            lambda t: {n.replace("layers.2", "layers.9"): v for n, v in t.items()},
            "layers.9.self_attn.q_proj' find no module",
        ),
        (lambda t: {n.replace("v_proj", "k_proj"): v for n, v in t.items()}, "k_proj' has tensors, but target_modules"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path)
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="find no module in LlamaForCausalLM"):
        load_adapter("mine", save(tmp_path, "gpt2"), build("llama"), torch.float32, "cpu")


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_embeddings_and_the_head_are_refused(target: str, tmp_path: Path) -> None:
    folder = save(tmp_path)
    edit(folder, target_modules=["q_proj", "v_proj", target])
    with pytest.raises(ValueError, match=target):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"adapter_model\.bin is a pickle"):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_and_broken_files_are_named(file: str, tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / file).write_bytes(b"{broken")
    with pytest.raises(ValueError, match=file):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")
    (folder / file).unlink()
    with pytest.raises(ValueError, match=file):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"adapter_config\.json"):
        load_adapter("mine", folder, build("llama"), torch.float32, "cpu")
