"""What a client needs from a protocol. Two protocols implement it, each once for threads and once for asyncio.

A `Deadline` bounds the whole call. Every method raises `OrthrusError`, and nothing else, for faults of
the network or the server.
"""

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Protocol as Interface
from typing import Self

from orthrus_client.contract import Tensors
from orthrus_client.deadline import Deadline
from orthrus_client.results import Chunk, Embeddings
from orthrus_client.security import Tls

STOP_TIMEOUT = 2.0  # seconds that telling the server to stop may take: whoever cancels does not want to wait
CONFIG_TIMEOUT = 30.0  # seconds that reading a model's configuration may take


class Transport(Interface):
    """A protocol for threads: every method may be called from several at once."""

    def __init__(self, url: str, tls: Tls | None, headers: Mapping[str, str]) -> None: ...

    def with_headers(self, headers: Mapping[str, str]) -> Self: ...

    def embed(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings: ...

    def generate(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Generator[Chunk]: ...

    def stop(self, request_id: str) -> None: ...

    def is_ready(self, model: str) -> bool: ...

    def parameters(self, model: str) -> Mapping[str, str]: ...

    def close(self) -> None: ...


class AsyncTransport(Interface):
    """A protocol for asyncio: belongs to the loop that it was first used on."""

    def __init__(self, url: str, tls: Tls | None, headers: Mapping[str, str]) -> None: ...

    def with_headers(self, headers: Mapping[str, str]) -> Self: ...

    async def embed(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings: ...

    def generate(self, request_id: str, tensors: Tensors, deadline: Deadline) -> AsyncGenerator[Chunk]: ...

    async def stop(self, request_id: str) -> None: ...

    async def is_ready(self, model: str) -> bool: ...

    async def parameters(self, model: str) -> Mapping[str, str]: ...

    async def close(self) -> None: ...
