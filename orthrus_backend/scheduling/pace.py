"""How many tokens fit into a step that should take no longer than a given time, learnt from the steps before.

A step of n tokens is taken to last `a + b n` seconds: reading the weights costs the same in every step, computing the
same for every token. `a` and `b` are the least-squares line through the latest steps, of which each weighs more than
the one before. Knows neither requests nor clocks.
"""

_DECAY = 0.98  # of a step's weight with every later one: some fifty steps count


class Pace:
    """Follows a model and a machine, whatever they are and whoever else uses them."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: what a step should take, at most."""
        self._seconds = seconds
        self._weight = self._tokens = self._squares = self._times = self._products = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        self._weight = _DECAY * self._weight + 1
        self._tokens = _DECAY * self._tokens + tokens
        self._squares = _DECAY * self._squares + tokens**2
        self._times = _DECAY * self._times + seconds
        self._products = _DECAY * self._products + tokens * seconds

    def tokens(self) -> float:
        """What fits; infinite before anything is known. At least zero, where the weights alone take too long."""
        if not self._times:
            return float("inf")
        size, time = self._tokens / self._weight, self._times / self._weight  # of the mean step
        variance = self._squares / self._weight - size**2
        slope = (self._products / self._weight - size * time) / variance if variance > 0.01 * size**2 else 0.0
        if not 0 < slope <= time / size:  # steps of one size, or noise: as if nothing but tokens took time
            slope = time / size
        return max(0.0, size + (self._seconds - time) / slope)
