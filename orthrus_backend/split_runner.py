"""Two models behind one plan: texts go to the embedding model, generations to the generator.

The scheduler shares each step's tokens between the two as if they were one model; only the forward passes are two.
"""

from orthrus_backend.outputs import StepResult
from orthrus_backend.plan import Plan
from orthrus_backend.runner import Runner


class SplitRunner:
    """Computes each kind's slices with its own runner, one after the other."""

    def __init__(self, embedder: Runner, generator: Runner) -> None:
        self._embedder = embedder
        self._generator = generator

    def run(self, plan: Plan) -> StepResult:
        """Forward passes, pooling and sampling for the slices of a plan."""
        embeds, generates = Plan(plan.embeds), Plan(plan.slices[len(plan.embeds) :])
        embedded = self._embedder.run(embeds) if embeds.slices else StepResult([], [], [])
        sampled = self._generator.run(generates).sampled if generates.slices else []
        return StepResult(sampled, embedded.pooled, embedded.at_borders)
