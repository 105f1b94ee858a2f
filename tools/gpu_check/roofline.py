"""The least time that a step can take: its operations and bytes by formula, over what the device does of them at most.

For a step of T rows, of which S choose a token, in a model with N weights in the linear layers of its decoder, H in its
head, and hidden states of d numbers:

- operations: `2 N T` of the decoder, `2 H S` of the head, `2 h (k + v)` in each layer for each row and each key that it
  sees (h query heads; k and v numbers of a key and a value), and `2 A` for each row of an adapter with A numbers
- bytes: of the N weights, of the H if S > 0, of T rows of d, and of the A of each adapter, once each; of all keys and
  values of earlier steps, read once, and of those that the step keeps, written once

It takes the larger of both times. What lies between layers is taken to stay on the chip, and a sliding window to be
longer than the sequences. So the bound is a little lower than what can be reached.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orthrus_backend.adapters import Adapter
from orthrus_backend.plan import Plan, Role, Slice
from tools.gpu_check.device import Ceiling
from tools.gpu_check.models import Prepared, linear_layers


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step takes at least."""

    operations: float
    bytes: float

    def seconds(self, ceiling: Ceiling) -> float:
        """On a device with these ceilings."""
        return max(self.operations / ceiling.operations, self.bytes / ceiling.bandwidth)

    def limited_by(self, ceiling: Ceiling) -> str:
        """Which of the two takes longer."""
        return (
            "operations"
            if self.operations / ceiling.operations > self.bytes / ceiling.bandwidth
            else "memory bandwidth"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of a model that the formulas need."""

    decoder: int  # N
    head: int  # H
    hidden: int  # d
    attention: int  # operations for one row and one key, in all layers
    kept: int  # numbers of keys and values of a token, in all layers
    itemsize: int

    @classmethod
    def of(cls, model: Prepared) -> "Counts":
        config = model.backbone.config
        return cls(
            decoder=sum(width_in * width_out for width_in, width_out in linear_layers(model.backbone.model).values()),
            head=config.hidden_size * config.vocab_size,
            hidden=config.hidden_size,
            attention=sum(2 * s.kv_heads * s.group * (s.key_dim + s.value_dim) for s in model.shapes),
            kept=sum(s.kv_heads * (s.key_dim + s.value_dim) for s in model.shapes),
            itemsize=model.backbone.dtype.itemsize,
        )

    def cost(self, plan: Plan) -> Cost:
        """Of one step, after it was computed."""
        sampled = len(plan.samples)
        operations = 2.0 * self.decoder * plan.tokens + 2.0 * self.head * sampled
        numbers = self.decoder + (self.head if sampled else 0) + self.hidden * plan.tokens
        for s in plan.slices:
            operations += self.attention * _keys_seen(s)
            numbers += self.kept * (s.start + (0 if _keeps_nothing(s) else s.length))
        for adapter, rows in _adapted_rows(plan.slices):
            size = sum(factors.a.numel() + factors.b.numel() for factors in adapter.layers.values())
            operations += 2.0 * size * rows
            numbers += size
        return Cost(operations, float(numbers) * self.itemsize)


def _keys_seen(s: Slice) -> int:
    """Summed over the rows of a slice: the first sees `start + 1` keys, the last `stop`."""
    return (s.stop * (s.stop + 1) - s.start * (s.start + 1)) // 2


def _keeps_nothing(s: Slice) -> bool:
    return s.role is Role.EMBED and s.start == 0 and s.completes


def _adapted_rows(slices: Sequence[Slice]) -> Iterable[tuple[Adapter, int]]:
    rows: Counter[Adapter] = Counter()
    for s in slices:
        if isinstance(s.request.adapter, Adapter):
            rows[s.request.adapter] += s.length
    return rows.items()
