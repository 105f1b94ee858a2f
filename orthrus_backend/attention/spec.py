"""What a layer asks of attention. A value; knows no tensors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """`window`: keys a query sees, itself included (None: all before it). `softcap`: scores become c*tanh(s/c)."""

    scale: float
    window: int | None = None
    softcap: float | None = None
