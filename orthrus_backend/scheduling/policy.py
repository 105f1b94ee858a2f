"""How the token budget of a step is shared between the two queues: three policies behind one interface.

A policy sees only how much work each queue has and who waits longest. It does not know blocks, slices or requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from orthrus_backend.config import PolicyName, SchedulerSettings
from orthrus_backend.request import Kind


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in a queue: outstanding tokens, and the place in arrival order of its head."""

    tokens: int
    order: int


class Policy(Protocol):
    """Decides whose turn it is."""

    def begin(self, queued: frozenset[Kind], running: bool) -> frozenset[Kind]:
        """A step begins: `queued` kinds wait, generations may run. Returns the kinds that may enter."""

    def may_pass(self, queue: Backlog, shut: Backlog) -> bool:
        """Whether a queue may be served although the other one, `shut`, lacks room for its head."""

    def choose(self, open_queues: Mapping[Kind, Backlog]) -> Kind:
        """Give the next turn to one of the queues that can use it; at least one can."""

    def emptied(self, kind: Kind) -> None:
        """A queue has no work left."""


class IntraBatchScheduling:
    """Turns in proportion to outstanding token work, by credit that persists across steps (the paper's Algorithm 2).

    At every turn each queue earns its share of the work, ``w / (w_e + w_g)``; the richer one is served and pays 1. For
    fixed work this is the published rule divided by ``w_e + w_g``. Dividing keeps every credit within half a turn of
    zero also while the work changes, where undivided credit earned under a large backlog would outlive it.

    A share can be so small that its turn is thousands of turns away ("hi" beside a text of 20,000 tokens), hence
    `patience`: a queue that had work but no turn for that many steps is served first.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._credit = dict.fromkeys(Kind, 0.0)
        self._waited = dict.fromkeys(Kind, 0)  # steps since the last turn

    def begin(self, queued: frozenset[Kind], running: bool) -> frozenset[Kind]:
        for kind in queued:
            self._waited[kind] += 1
        return frozenset(Kind)

    def may_pass(self, queue: Backlog, shut: Backlog) -> bool:
        return True

    def choose(self, open_queues: Mapping[Kind, Backlog]) -> Kind:
        if len(open_queues) == 1:
            kind = next(iter(open_queues))
        else:
            work = sum(backlog.tokens for backlog in open_queues.values())
            for kind, backlog in open_queues.items():
                self._credit[kind] += backlog.tokens / work
            kind = max(open_queues, key=lambda k: (self._waited[k] > self._patience, self._credit[k]))
            self._credit[kind] -= 1.0
        self._waited[kind] = 0
        return kind

    def emptied(self, kind: Kind) -> None:
        self._credit[kind] = 0.0
        self._waited[kind] = 0


class FirstComeFirstServed:
    """Both kinds share a step, strictly by arrival: as in vLLM, what cannot enter yet holds up all that came later."""

    def begin(self, queued: frozenset[Kind], running: bool) -> frozenset[Kind]:
        return frozenset(Kind)

    def may_pass(self, queue: Backlog, shut: Backlog) -> bool:
        return queue.order < shut.order

    def choose(self, open_queues: Mapping[Kind, Backlog]) -> Kind:
        return min(open_queues, key=lambda kind: open_queues[kind].order)

    def emptied(self, kind: Kind) -> None:
        pass


class Homogeneous:
    """A step serves one kind only; the kinds take turns while both have work."""

    def __init__(self) -> None:
        self._last = Kind.GENERATE

    def begin(self, queued: frozenset[Kind], running: bool) -> frozenset[Kind]:
        working = queued | {Kind.GENERATE} if running else queued
        other = Kind.EMBED if self._last is Kind.GENERATE else Kind.GENERATE
        self._last = other if other in working else self._last
        return frozenset((self._last,))

    def may_pass(self, queue: Backlog, shut: Backlog) -> bool:
        return True

    def choose(self, open_queues: Mapping[Kind, Backlog]) -> Kind:
        return next(iter(open_queues))

    def emptied(self, kind: Kind) -> None:
        pass


def make_policy(settings: SchedulerSettings) -> Policy:
    """The policy that the settings name."""
    makers: dict[PolicyName, Policy] = {
        "ibs": IntraBatchScheduling(settings.patience),
        "fcfs": FirstComeFirstServed(),
        "homogeneous": Homogeneous(),
    }
    return makers[settings.policy]
