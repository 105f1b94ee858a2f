"""What a client needs from a protocol. Two protocols implement it, each once for threads and once for asyncio.

`timeout` is in seconds and bounds the whole call. Every method raises `OrthrusError`, and nothing else, for faults of
the network or the server.
"""

from collections.abc import AsyncGenerator, Generator
from typing import Literal
from typing import Protocol as Interface

from orthrus_client.contract import Tensors
from orthrus_client.results import Chunk, Embeddings

Protocol = Literal["grpc", "http"]

STOP_TIMEOUT = 2.0  # seconds that telling the server to stop may take: whoever cancels does not want to wait


class Transport(Interface):
    """A protocol for threads: every method may be called from several at once."""

    def __init__(self, url: str) -> None: ...

    def embed(self, request_id: str, tensors: Tensors, timeout: float | None) -> Embeddings: ...

    def generate(self, request_id: str, tensors: Tensors, timeout: float | None) -> Generator[Chunk]: ...

    def stop(self, request_id: str) -> None: ...

    def is_ready(self, model: str) -> bool: ...

    def close(self) -> None: ...


class AsyncTransport(Interface):
    """A protocol for asyncio: belongs to the loop that it was first used on."""

    def __init__(self, url: str) -> None: ...

    async def embed(self, request_id: str, tensors: Tensors, timeout: float | None) -> Embeddings: ...

    def generate(self, request_id: str, tensors: Tensors, timeout: float | None) -> AsyncGenerator[Chunk]: ...

    async def stop(self, request_id: str) -> None: ...

    async def is_ready(self, model: str) -> bool: ...

    async def close(self) -> None: ...
