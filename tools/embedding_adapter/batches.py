"""Which pairs a training step sees: a function of seed and step alone, so that a run goes on where it was stopped."""

from collections.abc import Mapping, Sequence
from random import Random

from tools.embedding_adapter.pairs import Pair

_STRETCH = 4  # pairs taken side by side: neighbours are each other's hardest negatives


class Batches:
    """Batches of pairs from one source each; sources come up by weight."""

    def __init__(
        self, sources: Mapping[str, Sequence[Pair]], weights: Mapping[str, float], size: int, seed: int
    ) -> None:
        """Raises `ValueError` where a source has too few pairs for a batch."""
        for name, pairs in sources.items():
            if len(pairs) < size:
                raise ValueError(f"source {name!r} has {len(pairs)} pairs, which is less than a batch of {size}")
        self._sources = sources
        self._weights = weights
        self._size = size
        self._seed = seed

    def __getitem__(self, step: int) -> tuple[str, list[Pair]]:
        """The source and the pairs of a step, half of them in stretches of neighbours, half from anywhere."""
        random = Random(f"{self._seed}/{step}")
        (name,) = random.choices(list(self._weights), weights=list(self._weights.values()))
        pairs = self._sources[name]
        places: dict[int, None] = {}  # keeps the order of entering
        while len(places) < self._size // 2:
            start = random.randrange(len(pairs) - _STRETCH + 1)
            places |= dict.fromkeys(range(start, start + _STRETCH))
        while len(places) < self._size:
            places[random.randrange(len(pairs))] = None
        return name, [pairs[place] for place in list(places)[: self._size]]
