"""The reference: the default model run by Hugging Face's own code, one request at a time, in float32.

Its embedding adapter is PEFT's business.
"""

import json
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from orthrus_backend.default_model import EMBEDDING_ADAPTER, ensure_default_model

_TOPICS = (
    *("The capital of France is", "Water boils at", "Once upon a time", "def fibonacci(n):", "The Gold plan covers"),
    *(
        "In 1969, humans",
        "My favourite recipe needs",
        "To train a neural network,",
        "Die Hauptstadt von",
        "1, 1, 2, 3, 5,",
    ),
)


def prompts() -> list[str]:
    """Twenty prompts of 3 to about 150 tokens."""
    return [*_TOPICS, *(" ".join(_TOPICS[: n % 9 + 2]) + f" {n}. " * n for n in range(10))]


def texts(count: int) -> list[str]:
    """Texts to embed, of 6 to about 120 tokens."""
    return [f"Document {n}: " + " ".join(_TOPICS[(n + k) % 10] for k in range(1 + n % 12)) for n in range(count)]


class Reference:
    """Hugging Face's tokenizer and model; with `adapter`, that of PEFT for embeddings."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        self._folder, self._adapter = folder, adapter
        self.prompt = _default_prompt(adapter) if adapter else ""
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[tuple[int, ...], int], list[int]] = {}  # many tests ask for the same
        self._vectors: dict[tuple[str, str, str], np.ndarray] = {}

    def with_model(self, model: Any) -> "Reference":
        """The same tokenizer and prompt with another model, for embeddings too."""
        other = copy(self)
        other.model, other._adapter, other._known, other._vectors = model, None, {}, {}
        vars(other).pop("_embedder", None)
        return other

    @cached_property
    def _embedder(self) -> Any:
        if self._adapter is None:
            return self.model.base_model
        return PeftModel.from_pretrained(AutoModel.from_pretrained(self._folder, dtype=torch.float32), self._adapter)

    def greedy(self, prompt: str | Sequence[int], max_tokens: int) -> list[int]:
        """Ids that `generate` appends to a prompt."""
        ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)
        key = tuple(ids), max_tokens
        if key not in self._known:
            self._known[key] = self._generate(ids, max_tokens)
        return list(self._known[key])

    @torch.inference_mode()
    def _generate(self, ids: list[int], max_tokens: int) -> list[int]:
        inputs = torch.tensor([ids])
        output = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_tokens, do_sample=False
        )
        return output[0, len(ids) :].tolist()

    def greedy_text(self, prompt: str, max_tokens: int) -> str:
        """The same as text."""
        return self.tokenizer.decode(self.greedy(prompt, max_tokens), skip_special_tokens=True)

    def embed(self, text: str, pooling: str = "mean", prompt: str | None = None) -> np.ndarray:
        """Pooled last hidden states behind the prompt (of the adapter, if none is given), normalised: [D]."""
        key = text, pooling, self.prompt if prompt is None else prompt
        if key not in self._vectors:
            self._vectors[key] = self._embed(*key)
        return self._vectors[key].copy()

    @torch.inference_mode()
    def _embed(self, text: str, pooling: str, prompt: str) -> np.ndarray:
        unpooled = len(self.tokenizer(prompt)["input_ids"]) if prompt else 0
        ids = self.tokenizer(prompt + text, return_tensors="pt")["input_ids"]
        hidden = self._embedder(ids).last_hidden_state[0, unpooled:]  # [n, d]
        weights = torch.arange(unpooled + 1, unpooled + len(hidden) + 1, dtype=torch.float32)[:, None]
        pooled = {
            "mean": hidden.mean(0),
            "weighted_mean": (hidden * weights).sum(0) / weights.sum(),
            "cls": hidden[0],
            "last": hidden[-1],
        }[pooling]
        return (pooled / pooled.norm()).numpy()


def _default_prompt(adapter: Path) -> str:
    config = json.loads((adapter / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    return config["prompts"].get(config["default_prompt_name"], "")


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The one that all tests share."""
    return Reference(ensure_default_model(), EMBEDDING_ADAPTER)
