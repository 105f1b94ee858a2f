"""Asks a model what its attention stores, instead of guessing from configuration keys that differ by family."""

from torch import Tensor

from orthrus_backend.attention.spec import AttentionSpec
from orthrus_backend.kv_cache import LayerShape


class ProbeStep:
    """A `StepAttention` for one token that only notes what is asked: attention over a single key is its value."""

    def __init__(self) -> None:
        self._shapes: dict[int, LayerShape] = {}
        self._specs: dict[int, AttentionSpec] = {}
        self._causal: set[bool] = set()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        self._causal.add(spec.causal)
        if spec.causal and layer in self._shapes:
            raise ValueError(f"two attention modules claim layer {layer}")
        self._shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2], query.shape[1] // key.shape[1])
        self._specs[layer] = spec
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)

    def shapes(self, layers: int) -> list[LayerShape]:
        """One shape a layer; none at all where texts are seen whole, and nothing needs to be kept.

        Raises:
            ValueError: some of the model's layers do not attend through the registered function, or only some of them
                are causal.
        """
        if len(self._causal) > 1:
            raise ValueError("some layers of this model are causal and some are not; it cannot be served")
        if self._causal == {False}:
            return []
        missing = sorted(set(range(layers)) - set(self._shapes))
        if missing:
            raise ValueError(f"layers {missing} of this model do not use softmax attention; they cannot be served")
        return [self._shapes[layer] for layer in range(layers)]

    def specs(self) -> list[AttentionSpec]:
        """What each layer asks of attention, in the order of `shapes`."""
        return [self._specs[layer] for layer in sorted(self._specs)]
