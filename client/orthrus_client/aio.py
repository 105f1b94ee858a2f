"""`AsyncOrthrusClient`: the asyncio client. Same calls and same rules as `orthrus_client.client`, awaited."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Self, Unpack

import anyio
import numpy as np
from numpy.typing import NDArray

from orthrus_client.contract import (
    EMBED,
    GENERATE,
    Tensors,
    chat_tensors,
    embed_tensors,
    new_request_id,
    prompt_tensors,
)
from orthrus_client.errors import Cancelled, DeadlineExceeded
from orthrus_client.grpc_transport import AsyncGrpcTransport
from orthrus_client.http_transport import AsyncHttpTransport
from orthrus_client.options import EmbedOptions, Message, Sampling
from orthrus_client.results import Chunk, Embeddings, Generation
from orthrus_client.transport import AsyncTransport, Protocol


class AsyncOrthrusClient:
    """Embeds and generates on an Orthrus server, for asyncio. Create, use and close it on one event loop.

    Every call takes `timeout`, in seconds, for the whole call. When it passes, when the task that waits is cancelled,
    or when a stream is closed before its end, the server is told to stop. Raises what `OrthrusClient` raises.
    """

    def __init__(self, url: str, *, protocol: Protocol = "grpc") -> None:
        """Connects, on first use, to `url`: host:port of Triton's gRPC or HTTP service, as `protocol` says."""
        transports: dict[str, type[AsyncTransport]] = {"grpc": AsyncGrpcTransport, "http": AsyncHttpTransport}
        if protocol not in transports:
            raise ValueError(f"protocol is one of {sorted(transports)}, not {protocol!r}")
        self._transport = transports[protocol](url)

    async def embed(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Unpack[EmbedOptions]
    ) -> NDArray[np.float32]:
        """The vectors [N, D] of N texts, in their order; a single text makes [1, D]."""
        return (await self.embed_with_usage(texts, timeout=timeout, **options)).vectors

    async def embed_with_usage(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """As `embed`, with the number of tokens of each text."""
        tensors, request_id = embed_tensors(texts, options), new_request_id()
        async with self._stop_when_left(request_id):
            return await self._transport.embed(request_id, tensors, timeout)

    async def generate(self, prompt: str, *, timeout: float | None = None, **sampling: Unpack[Sampling]) -> Generation:
        """The text that follows `prompt`, which is not repeated in it."""
        chunks = self._run(prompt_tensors(prompt, sampling, stream=False), timeout)
        return Generation.join([chunk async for chunk in chunks])

    def stream(
        self, prompt: str, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncGenerator[Chunk]:
        """The same text in pieces, as they are made. Begins when the first is asked for; `aclose()` ends it early."""
        return self._run(prompt_tensors(prompt, sampling, stream=True), timeout)

    async def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """The answer to `messages`, which the model's own chat template turns into a prompt."""
        chunks = self._run(chat_tensors(messages, sampling, stream=False), timeout)
        return Generation.join([chunk async for chunk in chunks])

    def stream_chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncGenerator[Chunk]:
        """The same answer in pieces, as they are made."""
        return self._run(chat_tensors(messages, sampling, stream=True), timeout)

    async def is_ready(self) -> bool:
        """Whether both entry points are loaded; False as well when nobody answers."""
        return await self._transport.is_ready(EMBED) and await self._transport.is_ready(GENERATE)

    async def close(self) -> None:
        """Closes the connections; calls that still run fail."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _run(self, tensors: Tensors, timeout: float | None) -> AsyncGenerator[Chunk]:
        request_id = new_request_id()
        async with (
            self._stop_when_left(request_id),
            aclosing(self._transport.generate(request_id, tensors, timeout)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk

    @asynccontextmanager
    async def _stop_when_left(self, request_id: str) -> AsyncIterator[None]:
        """Tells the server when the caller goes before the answer is complete.

        Closing the connection does not tell it: Triton passes no cancellation on to a running step of an ensemble.
        """
        try:
            yield
        except (DeadlineExceeded, Cancelled, GeneratorExit, asyncio.CancelledError):
            with anyio.CancelScope(shield=True):  # a cancelled scope of anyio would cancel this await as well
                await self._transport.stop(request_id)
            raise
