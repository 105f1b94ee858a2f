"""`OrthrusClient`: the blocking client. Knows what to ask and when to say stop; the transports do the rest."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from copy import copy
from threading import Event, Thread
from typing import Self, Unpack

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
from orthrus_client.grpc_transport import GrpcTransport
from orthrus_client.http_transport import HttpTransport
from orthrus_client.options import RETRIES, EmbedOptions, Message, Protocol, Sampling
from orthrus_client.results import Chunk, Embeddings, Generation
from orthrus_client.retries import checked_retries, retrying
from orthrus_client.security import Tls, checked_headers
from orthrus_client.transport import STOP_TIMEOUT, Transport


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
        transports: dict[str, type[Transport]] = {"grpc": GrpcTransport, "http": HttpTransport}
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

    def embed(
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
            self.embed_with_usage(
                texts, timeout=timeout, batch_size=batch_size, in_flight=in_flight, progress=progress, **options
            )
        ).vectors

    def embed_with_usage(
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
        workers = checked_in_flight(in_flight)
        with progress_bar(sum(map(len, parts)), progress) as advance:
            if len(parts) == 1:
                return self._embed(parts[0], options, deadline, _Running())
            return Embeddings.join(self._embed_all(parts, options, deadline, workers, advance))

    def generate(
        self, prompt: str | TokenIds, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """The text that follows `prompt`, which is not repeated in it."""
        return Generation.join(self._run(prompt_tensors(prompt, one_text(sampling), stream=False), timeout))

    def generate_n(
        self, prompt: str | TokenIds, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> list[Generation]:
        """`n` texts that follow `prompt`, each drawn for itself."""
        return Generation.join_each(self._run(prompt_tensors(prompt, sampling, stream=False), timeout))

    def stream(
        self, prompt: str | TokenIds, *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generator[Chunk]:
        """The same text in pieces, as they are made. Begins when the first is asked for; `close()` ends it early."""
        return self._run(prompt_tensors(prompt, sampling, stream=True), timeout)

    def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """The answer to `messages`, which the model's own chat template turns into a prompt."""
        return Generation.join(self._run(chat_tensors(messages, one_text(sampling), stream=False), timeout))

    def stream_chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Generator[Chunk]:
        """The same answer in pieces, as they are made."""
        return self._run(chat_tensors(messages, sampling, stream=True), timeout)

    def chat_n(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> list[Generation]:
        """`n` answers, each drawn for itself."""
        return Generation.join_each(self._run(chat_tensors(messages, sampling, stream=False), timeout))

    def is_ready(self) -> bool:
        """Whether both entry points are loaded; False as well when nobody answers."""
        return self._transport.is_ready(EMBED) and self._transport.is_ready(GENERATE)

    def parameters(self) -> Mapping[str, str]:
        """What the backend was started with, by the names of its configuration; those that were left out are empty."""
        return self._transport.parameters(BACKEND)

    def embedding_model(self) -> str:
        """The model that embeds, as the server was told: a folder, a file or a hub id; empty if it does not say."""
        parameters = self.parameters()
        return parameters.get("embedding_model") or parameters.get("model", "")

    def close(self) -> None:
        """Closes the connections; calls that still run fail."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _embed_all(
        self,
        parts: Sequence[Sequence[str] | Sequence[TokenIds]],
        options: EmbedOptions,
        deadline: Deadline,
        workers: int,
        advance: Callable[[int], object],
    ) -> list[Embeddings]:
        running = _Running()
        with ThreadPoolExecutor(min(workers, len(parts))) as threads:
            calls = {threads.submit(self._embed, part, options, deadline, running): len(part) for part in parts}
            try:
                for call in as_completed(calls):
                    call.result()
                    advance(calls[call])
            except BaseException:  # a failure or Ctrl-C: nobody waits for the others any more
                threads.shutdown(wait=False, cancel_futures=True)
                running.abandoned.set()
                for request_id in tuple(running.ids):
                    self._transport.stop(request_id)
                raise
            return [call.result() for call in calls]

    def _embed(
        self, texts: Sequence[str] | Sequence[TokenIds], options: EmbedOptions, deadline: Deadline, running: "_Running"
    ) -> Embeddings:
        tensors = embed_tensors(texts, options)

        def attempt() -> Embeddings:
            request_id = self._request_id or new_request_id()
            with self._stop_when_left(request_id), running.noted(request_id):
                return self._transport.embed(request_id, tensors, deadline)

        return retrying(self._retries, deadline, running.abandoned)(attempt)

    def _run(self, tensors: Tensors, timeout: float | None) -> Generator[Chunk]:
        deadline = Deadline(timeout)

        def begin() -> tuple[str, Generator[Chunk], Chunk | None]:
            request_id = self._request_id or new_request_id()
            with self._stop_when_left(request_id):
                chunks = self._transport.generate(request_id, tensors, deadline)
                return request_id, chunks, next(chunks, None)

        request_id, chunks, first = retrying(self._retries, deadline, Event())(begin)
        with self._stop_when_left(request_id), closing(chunks):
            if first is not None:
                yield first
                yield from chunks

    @contextmanager
    def _stop_when_left(self, request_id: str) -> Iterator[None]:
        """Tells the server when the caller goes before the answer is complete.

        Closing the connection does not tell it: Triton passes no cancellation on to a running step of an ensemble.
        """
        try:
            yield
        except KeyboardInterrupt:
            # Not on this thread: raised in the middle of gRPC's code, it can leave a lock of the channel with this
            # thread, for which those that work for the channel then wait.
            stop = Thread(target=self._transport.stop, args=(request_id,), daemon=True)
            stop.start()
            stop.join(STOP_TIMEOUT)
            raise
        except BaseException as error:
            if server_may_go_on(error):
                self._transport.stop(request_id)
            raise


class _Running:
    """The requests of one call that the server works on at the moment."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.abandoned = Event()  # set when the caller has gone

    @contextmanager
    def noted(self, request_id: str) -> Iterator[None]:
        self.ids.add(request_id)
        try:
            yield
        finally:
            self.ids.discard(request_id)
