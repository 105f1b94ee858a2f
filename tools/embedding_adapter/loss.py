"""What training minimises. Knows nothing of models: vectors come in, a number with a gradient goes out."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.05
SAME = 0.9  # cosine by the teacher from which two documents (or queries) count as the same, and not as a negative


class Losses(NamedTuple):
    """Both parts, for the log, and how often the right document came first."""

    contrastive: Tensor
    distillation: Tensor
    first: float


def losses(vectors: Tensor, teacher: Tensor) -> Losses:
    """Contrastive loss with in-batch negatives, and distillation of all similarities.

    Contrastive: InfoNCE (van den Oord et al. 2018) in both directions. Distillation: for each text the Kullback-Leibler
    divergence from the teacher's distribution over all other texts to the student's, both softmaxes of cosines over
    `TEMPERATURE` (similarity-preserving distillation in the form of Fang et al. 2021, SEED).

    Args:
        vectors: [2 B, D] of length one, the queries and then their documents.
        teacher: [2 B, E] of length one, of the same texts.
    """
    size = len(vectors) // 2
    similar, model = teacher @ teacher.T, vectors @ vectors.T / TEMPERATURE
    right = torch.arange(size)
    other = ~torch.eye(size, dtype=torch.bool)
    same = ((similar[:size, :size] > SAME) | (similar[size:, size:] > SAME)) & other
    scores = model[:size, size:].masked_fill(same, -torch.inf)
    contrastive = (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2
    itself = torch.eye(2 * size, dtype=torch.bool)
    wanted = (similar / TEMPERATURE).masked_fill(itself, -1e4).log_softmax(1)
    given = model.masked_fill(itself, -1e4).log_softmax(1)
    distillation = F.kl_div(given, wanted, reduction="batchmean", log_target=True)
    return Losses(contrastive, distillation, float((scores.argmax(1) == right).float().mean()))
