"""How much of a step one turn gives to the request at the head of a queue, and who has to wait for whom.

Responsible for the rules by which blocks, chunk size and the step's tokens limit a turn. Changes no request and no
pool; whose turn it is, others decide.
"""

from collections.abc import Mapping

from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import SchedulerSettings
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Request
from orthrus_backend.scheduling.draft import Draft


class Turns:
    """The rules, and how long the head of each queue has waited for blocks."""

    def __init__(self, settings: SchedulerSettings, pool: BlockPool, whole_embeds: bool) -> None:
        self._settings = settings
        self._pool = pool
        self._whole_embeds = whole_embeds
        self._short_of_blocks: set[Kind] = set()  # whose head could not go on in the draft for want of blocks
        self._kept_waiting = dict.fromkeys(Kind, 0)  # steps in a row that this was so

    @property
    def longest_whole(self) -> int:
        """Tokens of a text that can be computed in one turn whatever else is running."""
        room = self._settings.token_budget - self._settings.max_running
        return room if self._whole_embeds else min(self._chunk, room)

    def is_uncut(self, request: Request) -> bool:
        """Whether the request is a text for which there is only one step or none."""
        if request.kind is not Kind.EMBED:
            return False
        return self._whole_embeds or self._pool.needed(request.total) > self._pool.num_blocks

    def is_whole(self, request: Request, start: int, tokens: int) -> bool:
        """Whether such a piece is all of a text whose keys nobody will read again: it needs no blocks."""
        return start == 0 and tokens == request.total and isinstance(request, EmbedRequest) and not request.recurring

    def gives_way(self, head: Request, rival: Request | None) -> bool:
        """Whether a request must not start with blocks: the head of the other queue has waited for them too long."""
        if rival is None or rival.order > head.order:
            return False
        return self._kept_waiting[rival.kind] >= self._settings.patience

    def begin(self) -> None:
        """A draft begins."""
        self._short_of_blocks.clear()

    def end(self, heads: Mapping[Kind, Request | None], draft: Draft) -> None:
        """The draft is what the step will be; `heads` wait behind it."""
        for kind, head in heads.items():
            waits = kind in self._short_of_blocks and head is not None and not draft.planned(head)
            self._kept_waiting[kind] = self._kept_waiting[kind] + 1 if waits else 0

    def tokens(self, head: Request, rival: Request | None, draft: Draft, running: int, settled: bool) -> int:
        """Tokens that a turn would give to the head of a queue now; 0 if it cannot be served in this step.

        A request starts only if all its known tokens can have blocks, and no generation starts in a step that had to
        preempt (not `settled`): it would be preempted next. Nor does any start that needs blocks while an elder one of
        the other kind, its `rival`, has waited for them for `patience` steps: it would take those that come free.
        """
        start = head.computed + draft.planned(head)
        if self.is_uncut(head):
            return head.total if head.total <= draft.room else 0
        tokens = min(self._chunk, head.total - start, draft.left)
        if isinstance(head, GenerateRequest):
            if running + draft.entering >= self._settings.max_running:
                return 0
            if start == 0 and not settled:
                return 0
        elif self.is_whole(head, start, tokens):
            return tokens
        if start == 0 and self.gives_way(head, rival):
            return 0
        wanted = head.total if start == 0 else start + tokens
        if self._pool.needed(wanted) - len(head.blocks) <= self._pool.available:
            return tokens
        if start == 0 and head.kind is Kind.EMBED and head.total <= min(self.longest_whole, draft.room):
            return head.total  # the step's time would have it in parts, for which there is no room
        self._short_of_blocks.add(head.kind)
        return 0

    @property
    def _chunk(self) -> int:
        return self._settings.chunk_size or self._settings.token_budget
