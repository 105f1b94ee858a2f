"""The models' own code, one request at a time: what the engine's answers are compared with."""

import numpy as np
import torch

from orthrus_backend.model import Backbone


@torch.inference_mode()
def plain_hidden(model: Backbone, ids: list[int]) -> torch.Tensor:
    """Last hidden states of the model's own eager code: [n, d]."""
    model.model.set_attn_implementation("eager")
    hidden = model.model.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    model.model.set_attn_implementation("orthrus")
    return hidden


@torch.inference_mode()
def plain_greedy(model: Backbone, ids: list[int], tokens: int) -> list[int]:
    """Greedy continuation by running the whole sequence anew for every token."""
    model.model.set_attn_implementation("eager")
    sequence = list(ids)
    for _ in range(tokens):
        sequence.append(int(model.model(torch.tensor([sequence]), use_cache=False).logits[0, -1].argmax()))
    model.model.set_attn_implementation("orthrus")
    return sequence[len(ids) :]


def plain_pool(hidden: torch.Tensor, pooling: str) -> np.ndarray:
    """Hidden states [n, d] pooled by the formula: [d]."""
    positions = torch.arange(1, len(hidden) + 1)[:, None]
    pooled = {
        "mean": hidden.mean(0),
        "weighted_mean": (hidden * positions).sum(0) / positions.sum(),
        "cls": hidden[0],
        "last": hidden[-1],
    }
    return pooled[pooling].numpy()
