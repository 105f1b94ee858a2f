"""What a layer asks of attention. A value; knows no tensors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is seen and how it is weighed.

    `causal`: a query sees keys up to its own position; else all of its sequence, which then is whole in the batch.
    `window`: only keys less than so many positions away are seen. `softcap`: scores become c*tanh(s/c).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
