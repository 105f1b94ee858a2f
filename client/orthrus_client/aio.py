"""`AsyncOrthrusClient`: the asyncio client. Same calls and same rules as `orthrus_client.client`, awaited."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from copy import copy
from typing import Self, Unpack

import anyio
import numpy as np
from numpy.typing import NDArray

from orthrus_client.batching import BATCH_SIZE, IN_FLIGHT, checked_in_flight, progress_bar, split
from orthrus_client.contract import (
    BACKEND,
    EMBED,
    GENERATE,
    Tensors,
    TokenIds,
    chat_tensors,
    embed_tensors,
    listed_texts,
    new_request_id,
    one_text,
    prompt_tensors,
)
from orthrus_client.deadline import Deadline
from orthrus_client.errors import server_may_go_on
from orthrus_client.grpc_transport import AsyncGrpcTransport
from orthrus_client.http_transport import AsyncHttpTransport
from orthrus_client.options import RETRIES, EmbedOptions, Message, Protocol, Sampling
from orthrus_client.results import Chunk, Embeddings, Generation
from orthrus_client.retries import async_retrying, checked_retries
from orthrus_client.security import Tls, checked_headers
from orthrus_client.transport import AsyncTransport


class AsyncOrthrusClient:
    """Embeds and generates on an Orthrus server, for asyncio. Create, use and close it on one event loop.

    Every call takes `timeout`, in seconds, for the whole call. When it passes, when the task that waits is cancelled,
    or when a stream is closed before its end, the server is told to stop. Raises what `OrthrusClient` raises.
    """

    def __init__(
        self,
        url: str,
        *,
        protocol: Protocol = "grpc",
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        retries: int = RETRIES,
    ) -> None:
        """Connects, on first use, to `url`: host:port of Triton's gRPC or HTTP service, as `protocol` says.

        Args:
            tls: encrypts the connection; by default it is plain, unless `url` is an address that begins with https://.
            headers: sent with every request, as metadata over gRPC; see `with_headers`.
            retries: how often a call is made again that found the server `Unavailable`, within the call's `timeout`;
                0 for never. A stream that has delivered something is never begun anew.

        Raises:
            ValueError: a value that cannot be; the message names it.
        """
        transports: dict[str, type[AsyncTransport]] = {"grpc": AsyncGrpcTransport, "http": AsyncHttpTransport}
        if protocol not in transports:
            raise ValueError(f"protocol is one of {sorted(transports)}, not {protocol!r}")
        self._retries = checked_retries(retries)
        self._request_id: str | None = None  # None: a new one for each call
        self._transport = transports[protocol](url, tls, checked_headers(headers or {}))

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        """This client with more `headers`, such as those of a trace. It shares the connections: close only one."""
        other = copy(self)
        other._transport = self._transport.with_headers(checked_headers(headers))
        return other

    def with_request_id(self, request_id: str) -> Self:
        """This client for one request: all that it asks for carries `request_id`, in the server's log too.

        When a call is left before its end, the server ends all that carry its id: nobody else should use it meanwhile.
        It shares the connections: close only one.
        """
        other = copy(self)
        other._request_id = request_id
        return other

    async def embed(
        self,
        texts: str | Sequence[str] | Sequence[TokenIds],
        *,
        timeout: float | None = None,
        batch_size: int = BATCH_SIZE,
        in_flight: int = IN_FLIGHT,
        progress: bool = False,
        **options: Unpack[EmbedOptions],
    ) -> NDArray[np.float32]:
        """The vectors [N, D] of N texts, in their order; a single text makes [1, D].

        Args:
            batch_size: texts in one request, at most; a longer list becomes several requests.
            in_flight: requests at the server at once, at most.
            progress: shows a bar on stderr, or in a notebook.
        """
        return (
            await self.embed_with_usage(
                texts, timeout=timeout, batch_size=batch_size, in_flight=in_flight, progress=progress, **options
            )
        ).vectors

    async def embed_with_usage(
        self,
        texts: str | Sequence[str] | Sequence[TokenIds],
        *,
        timeout: float | None = None,
        batch_size: int = BATCH_SIZE,
        in_flight: int = IN_FLIGHT,
        progress: bool = False,
        **options: Unpack[EmbedOptions],
    ) -> Embeddings:
        """As `embed`, with the number of tokens of each text."""
        parts, deadline = split(listed_texts(texts), batch_size), Deadline(timeout)
        workers = min(checked_in_flight(in_flight), len(parts))
        results: list[Embeddings | None] = [None] * len(parts)
        waiting = iter(enumerate(parts))
        with progress_bar(sum(map(len, parts)), progress) as advance:

            async def work() -> None:
                for position, part in waiting:
                    results[position] = await self._embed(part, options, deadline)
                    advance(len(part))

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(work())
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
        return Embeddings.join([result for result in results if result is not None])

    async def generate(
        self, prompt: str | TokenIds, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """The text that follows `prompt`, which is not repeated in it."""
        chunks = self._run(prompt_tensors(prompt, one_text(sampling), stream=False), timeout)
        return Generation.join([chunk async for chunk in chunks])

    async def generate_n(
        self, prompt: str | TokenIds, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> list[Generation]:
        """`n` texts that follow `prompt`, each drawn for itself."""
        chunks = self._run(prompt_tensors(prompt, sampling, stream=False), timeout)
        return Generation.join_each([chunk async for chunk in chunks])

    def stream(
        self, prompt: str | TokenIds, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncGenerator[Chunk]:
        """The same text in pieces, as they are made. Begins when the first is asked for; `aclose()` ends it early."""
        return self._run(prompt_tensors(prompt, sampling, stream=True), timeout)

    async def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """The answer to `messages`, which the model's own chat template turns into a prompt."""
        chunks = self._run(chat_tensors(messages, one_text(sampling), stream=False), timeout)
        return Generation.join([chunk async for chunk in chunks])

    def stream_chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> AsyncGenerator[Chunk]:
        """The same answer in pieces, as they are made."""
        return self._run(chat_tensors(messages, sampling, stream=True), timeout)

    async def chat_n(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> list[Generation]:
        """`n` answers, each drawn for itself."""
        chunks = self._run(chat_tensors(messages, sampling, stream=False), timeout)
        return Generation.join_each([chunk async for chunk in chunks])

    async def is_ready(self) -> bool:
        """Whether both entry points are loaded; False as well when nobody answers."""
        return await self._transport.is_ready(EMBED) and await self._transport.is_ready(GENERATE)

    async def parameters(self) -> Mapping[str, str]:
        """What the backend was started with, by the names of its configuration; those that were left out are empty."""
        return await self._transport.parameters(BACKEND)

    async def embedding_model(self) -> str:
        """The model that embeds, as the server was told: a folder, a file or a hub id; empty if it does not say."""
        parameters = await self.parameters()
        return parameters.get("embedding_model") or parameters.get("model", "")

    async def close(self) -> None:
        """Closes the connections; calls that still run fail."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _embed(
        self, texts: Sequence[str] | Sequence[TokenIds], options: EmbedOptions, deadline: Deadline
    ) -> Embeddings:
        tensors = embed_tensors(texts, options)

        async def attempt() -> Embeddings:
            request_id = self._request_id or new_request_id()
            async with self._stop_when_left(request_id):
                return await self._transport.embed(request_id, tensors, deadline)

        return await async_retrying(self._retries, deadline)(attempt)

    async def _run(self, tensors: Tensors, timeout: float | None) -> AsyncGenerator[Chunk]:
        deadline = Deadline(timeout)

        async def begin() -> tuple[str, AsyncGenerator[Chunk], Chunk | None]:
            request_id = self._request_id or new_request_id()
            async with self._stop_when_left(request_id):
                chunks = self._transport.generate(request_id, tensors, deadline)
                return request_id, chunks, await anext(chunks, None)

        begun: tuple[str, AsyncGenerator[Chunk], Chunk | None] = await async_retrying(self._retries, deadline)(begin)
        request_id, chunks, first = begun
        async with self._stop_when_left(request_id), aclosing(chunks):
            if first is not None:
                yield first
                async for chunk in chunks:
                    yield chunk

    @asynccontextmanager
    async def _stop_when_left(self, request_id: str) -> AsyncIterator[None]:
        """Tells the server when the caller goes before the answer is complete.

        Closing the connection does not tell it: Triton passes no cancellation on to a running step of an ensemble.
        """
        try:
            yield
        except BaseException as error:
            if server_may_go_on(error):
                with anyio.CancelScope(shield=True):  # a cancelled scope of anyio would cancel this await as well
                    await self._transport.stop(request_id)
            raise
