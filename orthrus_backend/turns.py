"""Takes turns among many, a few at a time."""

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Turns:
    """Whose turn it is: everybody's once before anybody's twice, as long as none come or go."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._next = 0

    def take(self, waiting: Sequence[_T]) -> list[_T]:
        """At most `at_once` of those that wait, from behind the last one that had its turn."""
        if not waiting:
            return []
        count = min(self._at_once, len(waiting))
        places = [(self._next + place) % len(waiting) for place in range(count)]
        self._next = (places[-1] + 1) % len(waiting)
        return [waiting[place] for place in places]
