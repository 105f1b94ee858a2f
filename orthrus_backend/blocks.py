"""The pool of key/value blocks: who may write where. Knows block numbers only, no memory."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from orthrus_backend.request import Request


class BlockPool:
    """Hands out blocks of `block_size` tokens each.

    Every block is either used, by one request or by several that only read it, or cached (nobody uses it, but what it
    holds may be wanted again), or free. A cached block is given away when no free one is left, the longest unused
    first. `check_integrity` asserts all that.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int], None] = lambda block: None  # told of a cached block that is given away
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is warm in the cache
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks, the longest unused first
        self.kept: set[int] = set()  # used or cached blocks whose contents may be used again
        self._users = [0] * num_blocks

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody uses now, with something in them that may be used again."""
        return len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that requests use."""
        return self.num_blocks - self.available

    @property
    def available(self) -> int:
        """Blocks that can be given to a request."""
        return len(self._free) + len(self._idle)

    def needed(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def grow(self, request: Request, tokens: int) -> bool:
        """Let the request own enough blocks for its first `tokens` tokens. False, unchanged: too few are available."""
        missing = self.needed(tokens) - len(request.blocks)
        if missing > self.available:
            return False
        for _ in range(missing):
            block = self._free.pop() if self._free else self._evict()
            self._users[block] = 1
            request.blocks.append(block)
        return True

    def can_share(self, blocks: Sequence[int], tokens: int) -> bool:
        """Whether a request that begins with these blocks can have all blocks for `tokens` tokens."""
        idle = sum(block in self._idle for block in blocks)
        return self.needed(tokens) - len(blocks) <= self.available - idle

    def share(self, request: Request, blocks: Sequence[int]) -> None:
        """Let a request without blocks read these, which hold its first tokens."""
        assert not request.blocks
        for block in blocks:
            self._users[block] += 1
            self._idle.pop(block, None)
        request.blocks.extend(blocks)

    def keep(self, block: int) -> None:
        """What this used block holds may be wanted again: it is cached, not freed, when nobody uses it any more."""
        self.kept.add(block)

    def release(self, request: Request) -> None:
        """Take back all blocks of the request, the last first: a block is of no use without those before it."""
        for block in reversed(request.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self.kept:
                self._idle[block] = None
            else:
                self._free.append(block)
        request.blocks.clear()

    def check_integrity(self, live: Sequence[Request]) -> None:
        """Assert that used, cached and free are all blocks, each once, and the used ones those of `live` requests."""
        users = Counter(block for request in live for block in request.blocks)
        assert users == Counter({block: n for block, n in enumerate(self._users) if n}), "users were miscounted"
        blocks = sorted([*users, *self._idle, *self._free])
        assert blocks == list(range(self.num_blocks)), "blocks were lost or given twice"
        assert self._idle.keys() <= self.kept <= {*users, *self._idle}, "a free block is known to hold something"

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self.kept.remove(block)
        self.on_evict(block)
        return block
