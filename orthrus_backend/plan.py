"""The plan of one step: which tokens of which requests are computed, in which order.

A value that the scheduler makes, the runner reads and `Scheduler.commit` applies. Order: embed chunks, prefill chunks,
decode tokens, and by adapter inside each, so that every output head and adapter works on contiguous rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from orthrus_backend.request import GenerateRequest, Kind, Request


class Role(IntEnum):
    """What a slice is for, in the order of a step's rows."""

    EMBED = 0
    PREFILL = 1
    DECODE = 2


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens `start` to `start + length` of one request."""

    request: Request
    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def role(self) -> Role:
        if not isinstance(self.request, GenerateRequest):
            return Role.EMBED
        return Role.DECODE if self.start >= self.request.prompt_length and self.length == 1 else Role.PREFILL

    @property
    def completes(self) -> bool:
        """Whether all known tokens are done after this slice: a token is sampled, or the embedding is ready."""
        return self.stop == self.request.total


@dataclass(frozen=True)
class Plan:
    """Slices of one step, in the order of their rows."""

    slices: tuple[Slice, ...]

    @classmethod
    def ordered(cls, slices: Iterable[Slice]) -> "Plan":
        """Sort slices into the order of a step; arrival order is kept among equals."""
        return cls(tuple(sorted(slices, key=lambda s: (s.role, s.request.adapter_key))))

    @cached_property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(s.length for s in self.slices)

    @cached_property
    def embeds(self) -> tuple[Slice, ...]:
        """Embed slices: the first rows."""
        return tuple(s for s in self.slices if s.role is Role.EMBED)

    @cached_property
    def samples(self) -> tuple[Slice, ...]:
        """Generate slices whose last row chooses a token, in row order."""
        return tuple(s for s in self.slices if s.role is not Role.EMBED and s.completes)

    @property
    def composition(self) -> str:
        """`embed`, `generate`, or `mixed` where both kinds share the step."""
        kinds = {s.request.kind for s in self.slices}
        return "mixed" if len(kinds) > 1 else kinds.pop().value

    def tokens_by_role(self) -> dict[Role, int]:
        """Tokens of each role."""
        counts = dict.fromkeys(Role, 0)
        for s in self.slices:
            counts[s.role] += s.length
        return counts

    def check(self, budget: int) -> None:
        """Assert what every later stage relies on."""
        assert self.tokens <= budget, f"{self.tokens} tokens planned over a budget of {budget}"
        keys = [(s.role, s.request.adapter_key) for s in self.slices]
        assert keys == sorted(keys), "slices out of order"
        assert len({id(s.request) for s in self.slices}) == len(self.slices), "a request has two slices"
        for s in self.slices:
            assert s.length > 0
            assert s.start == s.request.computed
            assert s.stop <= s.request.total
            if s.request.kind is Kind.GENERATE:
                assert s.request.blocks, "a generation is computed without blocks"
