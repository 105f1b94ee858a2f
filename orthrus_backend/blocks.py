"""The pool of key/value blocks: who may write where. Knows block numbers only, no memory."""

from collections.abc import Sequence

from orthrus_backend.request import Request


class BlockPool:
    """Hands out blocks of `block_size` tokens each.

    Every block is either free or owned by exactly one request; `check_integrity` asserts that.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is warm in the cache

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that requests own."""
        return self.num_blocks - len(self._free)

    def needed(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def grow(self, request: Request, tokens: int) -> bool:
        """Let the request own enough blocks for its first `tokens` tokens. False, unchanged: too few are free."""
        missing = self.needed(tokens) - len(request.blocks)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            request.blocks.append(self._free.pop())
        return True

    def release(self, request: Request) -> None:
        """Take back all blocks of the request."""
        self._free.extend(reversed(request.blocks))
        request.blocks.clear()

    def check_integrity(self, live: Sequence[Request]) -> None:
        """Assert that free blocks and those of `live` requests are all blocks, each once."""
        owned = [block for request in live for block in request.blocks]
        assert sorted(owned + self._free) == list(range(self.num_blocks)), "blocks were lost or given twice"
