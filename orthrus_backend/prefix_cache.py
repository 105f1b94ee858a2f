"""Finds key/value blocks that already hold what a request begins with, so that it is not computed again.

A block is known by its tokens and by the block before it, back to the kind of request and its adapter: equal keys mean
equal contents, no hash can collide. Only full blocks are known, and never the last token of a request, whose hidden
state is wanted.

A generation leaves every block that it fills, in the step that fills it. A text to embed needs its pooling state at the
end of the last block as well, and mostly no blocks at all; so only a beginning that two texts had is kept: the second
one pays for the blocks, the third gains. Knows neither steps nor tensors: pooling states are opaque.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from orthrus_backend.blocks import BlockPool
from orthrus_backend.request import EmbedRequest, Kind, Request

_REMEMBERED = 1 << 14  # beginnings of texts seen once, in blocks: about 2 MB

Key = tuple[Hashable, tuple[int, ...]]  # the link of what comes before, the block's tokens


@dataclass(slots=True)
class _Known:
    """A block that can be shared."""

    block: int
    link: int  # never given twice, so that nothing is found behind a block that was forgotten
    states: dict[Hashable, Any] = field(default_factory=dict)  # of pooling at its end, by `EmbedRequest.pooling_key`


class PrefixCache:
    """What the blocks of one pool hold. `queried` and `hits` count tokens of requests looked up, and found, by kind."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        pool.on_evict = self._forget
        self._known: dict[Key, _Known] = {}
        self._keys: dict[int, Key] = {}  # by block
        self._links = count()
        self._seen: OrderedDict[int, None] = (
            OrderedDict()
        )  # hashes of beginnings of texts; a collision costs blocks only
        self.queried = dict.fromkeys(Kind, 0)
        self.hits = dict.fromkeys(Kind, 0)

    def reuse(self, request: Request) -> None:
        """Start a request, of which nothing is computed, behind what is already known, if the pool has room for it.

        The request then reads the shared blocks, and counts their tokens as computed.
        """
        self.queried[request.kind] += request.total
        found = self._find(request)
        recurring = 0
        if isinstance(request, EmbedRequest):
            while found and request.pooling_key not in found[-1].states:
                found.pop()
            recurring = self._recurring(request)
        blocks = [known.block for known in found]
        shared = len(blocks) * self._pool.block_size
        if max(shared, recurring) == 0 or not self._pool.can_share(blocks, request.total):
            return
        self._pool.share(request, blocks)
        self.hits[request.kind] += shared
        request.computed = shared
        if found:
            request.linked, request.link = len(found), found[-1].link
        if isinstance(request, EmbedRequest):
            request.pool = found[-1].states[request.pooling_key] if found else None
            request.recurring = recurring if recurring > shared else 0

    def leave(self, request: Request, tokens: int) -> None:
        """Let others find the full blocks of a request's first `tokens` tokens, computed by the end of this step."""
        size = self._pool.block_size
        while (stop := (request.linked + 1) * size) <= tokens:
            key = (
                self._root(request) if request.link is None else request.link,
                tuple(request.tokens[stop - size : stop]),
            )
            known = self._known.get(key)
            if known is None:
                known = self._add(key, request.blocks[request.linked])
            request.link = known.link
            request.linked += 1

    def leave_recurring(self, request: EmbedRequest, state: Any) -> None:
        """The same for a text's recurring beginning, with the pooling state at its end."""
        self.leave(request, request.recurring)
        found = self._find(request)
        if len(found) * self._pool.block_size >= request.recurring:
            found[request.recurring // self._pool.block_size - 1].states[request.pooling_key] = state

    def check_integrity(self) -> None:
        """Assert that every known block has one key, and the pool keeps exactly those."""
        assert {block: key for key, known in self._known.items() for block in [known.block]} == self._keys
        assert self._pool.kept == self._keys.keys()

    def _find(self, request: Request) -> list[_Known]:
        """The known blocks that the request begins with, without its last token."""
        found: list[_Known] = []
        size = self._pool.block_size
        link = self._root(request)
        for start in range(0, request.total - size, size):
            known = self._known.get((link, tuple(request.tokens[start : start + size])))
            if known is None:
                break
            found.append(known)
            link = known.link
        return found

    def _recurring(self, text: EmbedRequest) -> int:
        """Tokens, in whole blocks, that an earlier text began with as well; remembers this one's beginnings."""
        recurring = 0
        size = self._pool.block_size
        seen = hash((self._root(text), text.pooling_key))
        for start in range(0, text.total - size, size):
            seen = hash((seen, *text.tokens[start : start + size]))
            if seen in self._seen:
                recurring = start + size
            self._seen[seen] = None
            self._seen.move_to_end(seen)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return recurring

    def _add(self, key: Key, block: int) -> _Known:
        assert block not in self._keys
        known = self._known[key] = _Known(block, next(self._links))
        self._keys[block] = key
        self._pool.keep(block)
        return known

    def _forget(self, block: int) -> None:
        del self._known[self._keys.pop(block)]

    def _root(self, request: Request) -> Hashable:
        return request.kind, None if request.adapter is None else request.adapter.serial
