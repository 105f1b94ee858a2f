"""The default model with a LoRA adapter that is being trained, as an embedder.

Pools as the server will: rows of the last hidden state, their mean or the last one, made to length one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

PoolingName = Literal["mean", "last"]
ADAPTED = r"layers\.[12]\d\..*_proj"  # all products of layers 10 to 29: what is below needs no gradients
_TOGETHER = 16  # texts of one forward pass, of about one length


class Student(nn.Module):
    """Embeds texts, with gradients for the adapter alone."""

    def __init__(self, folder: Path, rank: int, pooling: PoolingName, longest: int) -> None:
        """`longest`: tokens of a text that are read."""
        super().__init__()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._pooling = pooling
        self._longest = longest
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=ADAPTED, task_type="FEATURE_EXTRACTION")
        # eager: PyTorch's attention takes longer on a CPU, its gradient many times as long
        model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
        self.model = get_peft_model(model, config)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """[len(texts), D] in float32, of length one."""
        ids = self._tokenizer(list(texts), truncation=True, max_length=self._longest)["input_ids"]
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        parts = (order[start : start + _TOGETHER] for start in range(0, len(order), _TOGETHER))
        vectors = [self._pooled([ids[place] for place in part]) for part in parts]
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return F.normalize(torch.cat(vectors)[back], dim=-1)

    def _pooled(self, ids: Sequence[Sequence[int]]) -> Tensor:
        lengths = torch.tensor([len(text) for text in ids])
        padded = torch.zeros(len(ids), int(lengths.max()), dtype=torch.long)
        for row, text in enumerate(ids):
            padded[row, : len(text)] = torch.tensor(text)
        # Padding stands behind, where causal attention never looks: no mask is needed.
        with torch.autocast("cpu", dtype=torch.bfloat16), disable_input_dtype_casting(self.model):
            states = self.model(input_ids=padded, use_cache=False).last_hidden_state.float()
        if self._pooling == "last":
            return states[torch.arange(len(ids)), lengths - 1]
        inside = torch.arange(padded.shape[1]) < lengths[:, None]
        return (states * inside[..., None]).sum(1) / lengths[:, None]
