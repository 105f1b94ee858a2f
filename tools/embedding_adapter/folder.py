"""Writes a trained adapter as the server reads it: PEFT's files, and beside them Sentence Transformers' own."""

import json
from pathlib import Path

import torch
from peft import PeftModel

from orthrus_backend.default_model import MODEL_NAME


def save_adapter(folder: Path, model: PeftModel, pooling: str, prompt: str) -> None:
    """Write adapter and embedding configuration into `folder`; weights in bfloat16."""
    width = int(model.config.hidden_size)
    for config in model.peft_config.values():
        config.base_model_name_or_path = MODEL_NAME
    weights = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    model.save_pretrained(str(folder), state_dict=weights)
    (folder / "README.md").unlink()  # PEFT's form to fill in
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors makes its files private
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    mode = {"mean": "mean", "last": "lasttoken"}[pooling]
    _write(folder / "modules.json", modules)
    pool = {"embedding_dimension": width, "pooling_mode": mode, "include_prompt": False}
    _write(folder / "1_Pooling" / "config.json", pool)
    prompts = {"prompts": {"text": prompt}, "default_prompt_name": "text", "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", prompts)


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
