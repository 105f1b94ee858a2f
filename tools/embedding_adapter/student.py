"""The default model with a LoRA adapter that is being trained, as an embedder.

Pools as the server will: rows of the last hidden state behind the prompt, their mean or the last, made to length one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.helpers import disable_input_dtype_casting
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from orthrus_backend.model import resolve_dtype

PoolingName = Literal["mean", "last"]
ADAPTED = r"layers\.[12]\d\..*_proj"  # all products of layers 10 to 29: what is below needs no gradients
_TOGETHER = 16  # texts of one forward pass, of about one length


class Student(nn.Module):
    """Embeds texts, with gradients for the adapter alone; in bfloat16 where the processor multiplies it natively."""

    def __init__(self, folder: Path, rank: int, pooling: PoolingName, longest: int, prompt: str) -> None:
        """`longest`: tokens of a text that are read, behind the prompt."""
        super().__init__()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._prompt = prompt
        self._prompt_length = len(self._tokenizer(prompt)["input_ids"])
        self._pooling = pooling
        self._longest = longest
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=ADAPTED, task_type="FEATURE_EXTRACTION")
        # eager: PyTorch's attention takes longer on a CPU, its gradient many times as long
        self._dtype = resolve_dtype("auto", torch.device("cpu"))
        model = AutoModel.from_pretrained(folder, dtype=self._dtype, attn_implementation="eager")
        self.model = get_peft_model(model, config)

    def start_from(self, adapter: Path) -> None:
        """Take the weights of an adapter of the same shape.

        Raises:
            ValueError: it adapts other layers, or has another rank.
        """
        weights = load_file(adapter / "adapter_model.safetensors")
        own = get_peft_model_state_dict(self.model)
        if {name: value.shape for name, value in own.items()} != {n: value.shape for n, value in weights.items()}:
            raise ValueError(f"the adapter in {adapter} has not the shape of the one to train")
        set_peft_model_state_dict(self.model, weights)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """[len(texts), D] in float32, of length one."""
        most = self._prompt_length + self._longest
        prompted = [self._prompt + text for text in texts]
        ids = self._tokenizer(prompted, truncation=True, max_length=most)["input_ids"]
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
        mixed = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16)
        with mixed, disable_input_dtype_casting(self.model):
            states = self.model(input_ids=padded, use_cache=False).last_hidden_state.float()
        if self._pooling == "last":
            return states[torch.arange(len(ids)), lengths - 1]
        places = torch.arange(padded.shape[1])
        inside = (places >= self._prompt_length) & (places < lengths[:, None])
        return (states * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)
