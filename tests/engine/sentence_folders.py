"""Sentence Transformers folders on tiny random causal models, and texts sent through a whole service made from one."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoModelForCausalLM
from transformers import models as families

from orthrus_backend.assembly import Service, build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.outputs import Embedded, Output
from orthrus_backend.params import EmbeddingParams
from orthrus_backend.request import Request
from tests.small_model import VOCABULARY, tokenizer

WIDTH = 32
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": families.LlamaConfig(**_SIZES, intermediate_size=48, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2": families.Qwen2Config(**_SIZES, intermediate_size=48, num_key_value_heads=2, tie_word_embeddings=True),
    "gpt2": families.GPT2Config(**_SIZES),
}


def build(
    folder: Path,
    pooling: str | list[str] = "mean",
    *modules: torch.nn.Module,
    family: str = "llama",
    special: str = "both",
    include_prompt: bool = True,
    max_seq_length: int | None = None,
    **settings: Any,
) -> Path:
    """Save a folder as Sentence Transformers does, with the whole causal model's weights in it."""
    torch.manual_seed(0)
    config = CONFIGS[family]
    config.initializer_range = 0.2
    causal = AutoModelForCausalLM.from_config(config).eval()
    source = folder / "source"
    causal.save_pretrained(source)
    tokenizer(special).save_pretrained(source)
    transformer = Transformer(str(source), max_seq_length=max_seq_length)
    first = [transformer, Pooling(WIDTH, pooling, include_prompt=include_prompt)]
    target = folder / "model"
    SentenceTransformer(modules=[*first, *modules], device="cpu", **settings).save(str(target))
    causal.save_pretrained(target)
    return target


def change(path: Path, **keys: Any) -> None:
    """Set keys of a JSON file; None takes a key away."""
    content = (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}) | keys
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}), encoding="utf-8")


def make_legacy(folder: Path, *, max_seq_length: int | None = None, do_lower_case: bool = False, **modes: bool) -> None:
    """Rewrite a folder's files as versions 1 to 4 wrote them."""
    entries = json.loads((folder / "modules.json").read_text())
    for entry in entries:
        entry["type"] = f"sentence_transformers.models.{entry['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(entries))
    legacy = {"max_seq_length": max_seq_length, "do_lower_case": do_lower_case}
    (folder / "sentence_bert_config.json").write_text(json.dumps(legacy))
    keys = {f"pooling_mode_{name}": value for name, value in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": WIDTH} | keys))
    change(folder / "config_sentence_transformers.json", model_type=None, similarity_fn_name=None)


def reference(folder: Path) -> SentenceTransformer:
    """The same folder, run by Sentence Transformers."""
    return SentenceTransformer(str(folder), device="cpu")


def reference_ids(model: SentenceTransformer, text: str) -> list[int]:
    """Token ids that Sentence Transformers gives its model for one text."""
    return model.preprocess([text])["input_ids"][0].tolist()


@contextmanager
def serving(folder: Path, chunk: int = 0) -> Iterator[Service]:
    """A service in float32 whose steps hold one chunk."""
    budget = {"token_budget": str(max(chunk, 2)), "max_running": "1"} if chunk else {}
    parameters = {"model": str(folder), "dtype": "float32", "kv_memory": "1MiB", "chunk_size": str(chunk), **budget}
    service = build_service(EngineSettings.from_parameters(parameters))
    try:
        yield service
    finally:
        service.engine.close()


class _Vector:
    """Waits for one vector."""

    def __init__(self) -> None:
        self.value: Any = None
        self.done = threading.Event()

    def deliver(self, output: Output) -> None:
        self.value = output.vector if isinstance(output, Embedded) else output
        self.done.set()

    def cancelled(self) -> bool:
        return False


def embed(service: Service, texts: Sequence[str | list[int]], **params: Any) -> np.ndarray:
    """The vectors of texts that are asked for at once: [N, D]."""
    options = EmbeddingParams.from_mapping(params)
    requests: list[Request] = [service.intake.embed(text, options) for text in texts]
    for request in requests:
        request.reply = _Vector()
    service.engine.submit(requests)
    for request in requests:
        assert request.reply.done.wait(60)
    return np.stack([request.reply.value for request in requests])
