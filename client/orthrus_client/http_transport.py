"""HTTP: Triton's binary infer for embeddings, its generate and generate_stream (server-sent events) for generations.

httpx2 carries the bytes and parses the events, tritonclient writes and reads the binary tensors. tritonclient's own
HTTP client is not used: it knows no server-sent events, and no thread but its own.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, suppress
from copy import copy
from typing import Any, Self

import httpx2
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import np_to_triton_dtype

from orthrus_client.contract import (
    BACKEND,
    EMBED,
    TOKEN_IDS,
    ChunkReader,
    Fields,
    Tensors,
    generate_json,
    generation_model,
    read_embeddings,
    read_embeddings_json,
    stop_tensors,
)
from orthrus_client.deadline import Deadline
from orthrus_client.errors import OrthrusError, Unavailable, http_error, with_hint
from orthrus_client.results import Chunk, Embeddings
from orthrus_client.security import Tls
from orthrus_client.transport import CONFIG_TIMEOUT, STOP_TIMEOUT

HEADER_LENGTH = "Inference-Header-Content-Length"
_DIRECT = f"/v2/models/{BACKEND}/generate"
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=64)

logger = logging.getLogger(__name__)


class HttpTransport:
    """HTTP for threads.

    A stream's deadline is checked whenever something arrives; a server that falls silent is given up on once it was
    silent for as long as the whole call might take.
    """

    def __init__(self, url: str, tls: Tls | None, headers: Mapping[str, str]) -> None:
        self._http = httpx2.Client(base_url=_base_url(url, tls), limits=LIMITS, verify=_verify(tls))
        self._headers = dict(headers)

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        other = copy(self)
        other._headers = {**self._headers, **headers}
        return other

    def embed(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        if TOKEN_IDS in tensors:
            return self._embed_ids(request_id, tensors, deadline)
        body, own = _infer_body(request_id, tensors, deadline.for_server())
        try:
            response = self._http.post(
                f"/v2/models/{EMBED}/infer", content=body, headers=self._headers | own, timeout=deadline.left()
            )
        except httpx2.TransportError as error:
            raise _transport_error(error, deadline) from None
        return _embeddings(response)

    def generate(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Generator[Chunk]:
        body, headers = generate_json(request_id, tensors, deadline.for_server()), self._headers
        url, reader, timeout = _generation_url(tensors), ChunkReader(), deadline.left()
        try:
            if not body["stream"]:
                response = self._http.post(url, json=body, headers=headers, timeout=timeout)
                yield from reader.read(_fields(response.status_code, _json(response)))
                return
            with self._http.sse(url, method="POST", json=body, headers=headers, timeout=timeout) as events:
                if not _is_stream(events.response):
                    events.response.read()
                    raise _refusal(events.response)
                for event in events:
                    if deadline.passed():
                        raise deadline.error()
                    yield from reader.read(_fields(events.response.status_code, event.json()))
        except httpx2.TransportError as error:
            raise _transport_error(error, deadline) from None

    def _embed_ids(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        """Only the backend itself takes token ids, and it answers a plain infer with an error."""
        body = generate_json(request_id, tensors, deadline.for_server())
        try:
            response = self._http.post(_DIRECT, json=body, headers=self._headers, timeout=deadline.left())
        except httpx2.TransportError as error:
            raise _transport_error(error, deadline) from None
        return read_embeddings_json(_fields(response.status_code, _json(response)))

    def stop(self, request_id: str) -> None:
        body = generate_json(request_id, stop_tensors())
        try:
            self._http.post(_DIRECT, json=body, headers=self._headers, timeout=STOP_TIMEOUT)
        except httpx2.TransportError as error:
            logger.debug("stop of request %s failed: %s", request_id, error)

    def is_ready(self, model: str) -> bool:
        with suppress(httpx2.TransportError):
            url = f"/v2/models/{model}/ready"
            return self._http.get(url, headers=self._headers, timeout=STOP_TIMEOUT).is_success
        return False

    def parameters(self, model: str) -> Mapping[str, str]:
        try:
            url = f"/v2/models/{model}/config"
            return _parameters(self._http.get(url, headers=self._headers, timeout=CONFIG_TIMEOUT))
        except httpx2.TransportError as error:
            raise _transport_error(error, Deadline(CONFIG_TIMEOUT)) from None

    def close(self) -> None:
        self._http.close()


class AsyncHttpTransport:
    """HTTP for asyncio."""

    def __init__(self, url: str, tls: Tls | None, headers: Mapping[str, str]) -> None:
        base, verify = _base_url(url, tls), _verify(tls)
        self._http = httpx2.AsyncClient(base_url=base, limits=LIMITS, verify=verify, timeout=None)
        self._headers = dict(headers)

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        other = copy(self)
        other._headers = {**self._headers, **headers}
        return other

    async def embed(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        if TOKEN_IDS in tensors:
            return await self._embed_ids(request_id, tensors, deadline)
        body, own = _infer_body(request_id, tensors, deadline.for_server())
        try:
            async with asyncio.timeout(deadline.left()):
                response = await self._http.post(f"/v2/models/{EMBED}/infer", content=body, headers=self._headers | own)
        except TimeoutError:
            raise deadline.error() from None
        except httpx2.TransportError as error:
            raise _transport_error(error, deadline) from None
        return _embeddings(response)

    async def generate(self, request_id: str, tensors: Tensors, deadline: Deadline) -> AsyncGenerator[Chunk]:
        body = generate_json(request_id, tensors, deadline.for_server())
        async with aclosing(self._chunks(_generation_url(tensors), body)) as chunks:
            while True:
                try:
                    # Not around the loop: a deadline that passes while the caller works must not cancel the caller.
                    async with asyncio.timeout(deadline.left()):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise deadline.error() from None
                except httpx2.TransportError as error:
                    raise _transport_error(error, deadline) from None
                yield chunk

    async def _chunks(self, url: str, body: dict[str, Any]) -> AsyncGenerator[Chunk]:
        reader = ChunkReader()
        if not body["stream"]:
            response = await self._http.post(url, json=body, headers=self._headers)
            for chunk in reader.read(_fields(response.status_code, _json(response))):
                yield chunk
            return
        async with self._http.sse(url, method="POST", json=body, headers=self._headers) as events:
            if not _is_stream(events.response):
                await events.response.aread()
                raise _refusal(events.response)
            async for event in events:
                for chunk in reader.read(_fields(events.response.status_code, event.json())):
                    yield chunk

    async def _embed_ids(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        """Only the backend itself takes token ids, and it answers a plain infer with an error."""
        body = generate_json(request_id, tensors, deadline.for_server())
        try:
            async with asyncio.timeout(deadline.left()):
                response = await self._http.post(_DIRECT, json=body, headers=self._headers)
        except TimeoutError:
            raise deadline.error() from None
        except httpx2.TransportError as error:
            raise _transport_error(error, deadline) from None
        return read_embeddings_json(_fields(response.status_code, _json(response)))

    async def stop(self, request_id: str) -> None:
        body = generate_json(request_id, stop_tensors())
        try:
            await self._http.post(_DIRECT, json=body, headers=self._headers, timeout=STOP_TIMEOUT)
        except httpx2.TransportError as error:
            logger.debug("stop of request %s failed: %s", request_id, error)

    async def is_ready(self, model: str) -> bool:
        with suppress(httpx2.TransportError):
            url = f"/v2/models/{model}/ready"
            return (await self._http.get(url, headers=self._headers, timeout=STOP_TIMEOUT)).is_success
        return False

    async def parameters(self, model: str) -> Mapping[str, str]:
        try:
            url = f"/v2/models/{model}/config"
            return _parameters(await self._http.get(url, headers=self._headers, timeout=CONFIG_TIMEOUT))
        except httpx2.TransportError as error:
            raise _transport_error(error, Deadline(CONFIG_TIMEOUT)) from None

    async def close(self) -> None:
        await self._http.aclose()


def _base_url(url: str, tls: Tls | None) -> str:
    if tls is not None and url.startswith("http://"):
        raise ValueError(f"{url!r} is an address without TLS, but tls was given: begin it with https://")
    return url if "://" in url else f"{'http' if tls is None else 'https'}://{url}"


def _verify(tls: Tls | None) -> ssl.SSLContext | bool:
    return True if tls is None else tls.context()


def _infer_body(request_id: str, tensors: Tensors, timeout: int) -> tuple[bytes, dict[str, str]]:
    inputs = []
    for name, array in tensors.items():
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    outputs = [InferRequestedOutput(name) for name in ("embedding", "num_input_tokens")]
    body, header_length = InferenceServerClient.generate_request_body(
        inputs, outputs=outputs, request_id=request_id, timeout=timeout or None
    )
    return body, {} if header_length is None else {HEADER_LENGTH: str(header_length)}


def _embeddings(response: httpx2.Response) -> Embeddings:
    if not response.is_success:
        raise _refusal(response)
    length = response.headers.get(HEADER_LENGTH)
    result = InferenceServerClient.parse_response_body(
        response.content, header_length=None if length is None else int(length)
    )
    return read_embeddings(result)


def _parameters(response: httpx2.Response) -> Mapping[str, str]:
    if not response.is_success:
        raise _refusal(response)
    return {name: value["string_value"] for name, value in _json(response).get("parameters", {}).items()}


def _is_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("Content-Type", "")).startswith("text/event-stream")


def _refusal(response: httpx2.Response) -> OrthrusError:
    return http_error(response.status_code, _json(response).get("error", ""))


def _generation_url(tensors: Tensors) -> str:
    return f"/v2/models/{generation_model(tensors)}/generate{'_stream' if tensors['stream'].item() else ''}"


def _fields(status: int, fields: Any) -> Fields:
    if "error" in fields:
        raise http_error(status, fields["error"])
    return dict(fields)


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        return dict(response.json())
    except ValueError:  # not from Triton, but from something on the way to it
        raise http_error(response.status_code, response.text[:200]) from None


def _transport_error(error: httpx2.TransportError, deadline: Deadline) -> OrthrusError:
    if isinstance(error, httpx2.TimeoutException):
        return deadline.error()
    return Unavailable(with_hint(str(error) or type(error).__name__))
