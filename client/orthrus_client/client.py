"""`OrthrusClient`: the blocking client. Knows what to ask and when to say stop; the transports do the rest."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, Unpack

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
from orthrus_client.grpc_transport import GrpcTransport
from orthrus_client.http_transport import HttpTransport
from orthrus_client.options import EmbedOptions, Message, Sampling
from orthrus_client.results import Chunk, Embeddings, Generation
from orthrus_client.transport import Protocol, Transport


class OrthrusClient:
    """Embeds and generates on an Orthrus server. One client serves any number of threads; close it, or use `with`.

    Every call takes `timeout`, in seconds, for the whole call. When it passes, or when a stream is closed before its
    end, the server is told to stop, so that it does not go on working for nobody.

    Raises, from every call:
        InvalidRequest: the server refuses the request; the message names the fault.
        Unavailable: nobody answers, or the server has too much to do.
        DeadlineExceeded: `timeout` passed.
        OrthrusError: the base of these, and anything else that went wrong at the server.
    """

    def __init__(self, url: str, *, protocol: Protocol = "grpc") -> None:
        """Connects, on first use, to `url`: host:port of Triton's gRPC or HTTP service, as `protocol` says."""
        transports: dict[str, type[Transport]] = {"grpc": GrpcTransport, "http": HttpTransport}
        if protocol not in transports:
            raise ValueError(f"protocol is one of {sorted(transports)}, not {protocol!r}")
        self._transport = transports[protocol](url)

    def embed(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Unpack[EmbedOptions]
    ) -> NDArray[np.float32]:
        """The vectors [N, D] of N texts, in their order; a single text makes [1, D]."""
        return self.embed_with_usage(texts, timeout=timeout, **options).vectors

    def embed_with_usage(
        self, texts: str | Sequence[str], *, timeout: float | None = None, **options: Unpack[EmbedOptions]
    ) -> Embeddings:
        """As `embed`, with the number of tokens of each text."""
        tensors, request_id = embed_tensors(texts, options), new_request_id()
        with self._stop_when_left(request_id):
            return self._transport.embed(request_id, tensors, timeout)

    def generate(self, prompt: str, *, timeout: float | None = None, **sampling: Unpack[Sampling]) -> Generation:
        """The text that follows `prompt`, which is not repeated in it."""
        return Generation.join(self._run(prompt_tensors(prompt, sampling, stream=False), timeout))

    def stream(self, prompt: str, *, timeout: float | None = None, **sampling: Unpack[Sampling]) -> Generator[Chunk]:
        """The same text in pieces, as they are made. Begins when the first is asked for; `close()` ends it early."""
        return self._run(prompt_tensors(prompt, sampling, stream=True), timeout)

    def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """The answer to `messages`, which the model's own chat template turns into a prompt."""
        return Generation.join(self._run(chat_tensors(messages, sampling, stream=False), timeout))

    def stream_chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generator[Chunk]:
        """The same answer in pieces, as they are made."""
        return self._run(chat_tensors(messages, sampling, stream=True), timeout)

    def is_ready(self) -> bool:
        """Whether both entry points are loaded; False as well when nobody answers."""
        return self._transport.is_ready(EMBED) and self._transport.is_ready(GENERATE)

    def close(self) -> None:
        """Closes the connections; calls that still run fail."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self, tensors: Tensors, timeout: float | None) -> Generator[Chunk]:
        request_id = new_request_id()
        with self._stop_when_left(request_id):
            yield from self._transport.generate(request_id, tensors, timeout)

    @contextmanager
    def _stop_when_left(self, request_id: str) -> Iterator[None]:
        """Tells the server when the caller goes before the answer is complete.

        Closing the connection does not tell it: Triton passes no cancellation on to a running step of an ensemble.
        """
        try:
            yield
        except (DeadlineExceeded, Cancelled, GeneratorExit, KeyboardInterrupt):
            self._transport.stop(request_id)
            raise
