"""HTTP: Triton's binary infer for embeddings, its generate and generate_stream (server-sent events) for generations.

httpx2 carries the bytes and parses the events, tritonclient writes and reads the binary tensors. tritonclient's own
HTTP client is not used: it knows no server-sent events, and no thread but its own.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, suppress
from typing import Any

import httpx2
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import np_to_triton_dtype

from orthrus_client.contract import (
    BACKEND,
    EMBED,
    GENERATE,
    Tensors,
    generate_json,
    read_chunk,
    read_embeddings,
    stop_tensors,
)
from orthrus_client.errors import OrthrusError, Unavailable, deadline_error, http_error
from orthrus_client.results import Chunk, Embeddings
from orthrus_client.transport import STOP_TIMEOUT

HEADER_LENGTH = "Inference-Header-Content-Length"
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=64)

logger = logging.getLogger(__name__)


class HttpTransport:
    """HTTP for threads.

    A stream's deadline is checked whenever something arrives; a server that falls silent is given up on once it was
    silent for `timeout` seconds.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=_base_url(url), limits=LIMITS)

    def embed(self, request_id: str, tensors: Tensors, timeout: float | None) -> Embeddings:
        body, headers = _infer_body(request_id, tensors)
        try:
            response = self._http.post(f"/v2/models/{EMBED}/infer", content=body, headers=headers, timeout=timeout)
        except httpx2.TransportError as error:
            raise _transport_error(error, timeout) from None
        return _embeddings(response)

    def generate(self, request_id: str, tensors: Tensors, timeout: float | None) -> Generator[Chunk]:
        body, deadline = generate_json(request_id, tensors), _deadline(time.monotonic(), timeout)
        try:
            if not body["stream"]:
                response = self._http.post(f"/v2/models/{GENERATE}/generate", json=body, timeout=timeout)
                yield _chunk(response.status_code, _json(response))
                return
            url = f"/v2/models/{GENERATE}/generate_stream"
            with self._http.sse(url, method="POST", json=body, timeout=timeout) as events:
                for event in events:
                    if deadline is not None and time.monotonic() > deadline:
                        raise deadline_error(timeout)
                    yield _chunk(events.response.status_code, event.json())
        except httpx2.TransportError as error:
            raise _transport_error(error, timeout) from None

    def stop(self, request_id: str) -> None:
        body = generate_json(request_id, stop_tensors())
        try:
            self._http.post(f"/v2/models/{BACKEND}/generate", json=body, timeout=STOP_TIMEOUT)
        except httpx2.TransportError as error:
            logger.debug("stop of request %s failed: %s", request_id, error)

    def is_ready(self, model: str) -> bool:
        with suppress(httpx2.TransportError):
            return self._http.get(f"/v2/models/{model}/ready", timeout=STOP_TIMEOUT).is_success
        return False

    def close(self) -> None:
        self._http.close()


class AsyncHttpTransport:
    """HTTP for asyncio."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.AsyncClient(base_url=_base_url(url), limits=LIMITS, timeout=None)

    async def embed(self, request_id: str, tensors: Tensors, timeout: float | None) -> Embeddings:
        body, headers = _infer_body(request_id, tensors)
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.post(f"/v2/models/{EMBED}/infer", content=body, headers=headers)
        except TimeoutError:
            raise deadline_error(timeout) from None
        except httpx2.TransportError as error:
            raise _transport_error(error, timeout) from None
        return _embeddings(response)

    async def generate(self, request_id: str, tensors: Tensors, timeout: float | None) -> AsyncGenerator[Chunk]:
        deadline = _deadline(asyncio.get_running_loop().time(), timeout)
        async with aclosing(self._chunks(generate_json(request_id, tensors))) as chunks:
            while True:
                try:
                    # Not around the loop: a deadline that passes while the caller works must not cancel the caller.
                    async with asyncio.timeout_at(deadline):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise deadline_error(timeout) from None
                except httpx2.TransportError as error:
                    raise _transport_error(error, timeout) from None
                yield chunk

    async def _chunks(self, body: dict[str, Any]) -> AsyncGenerator[Chunk]:
        if not body["stream"]:
            response = await self._http.post(f"/v2/models/{GENERATE}/generate", json=body)
            yield _chunk(response.status_code, _json(response))
            return
        async with self._http.sse(f"/v2/models/{GENERATE}/generate_stream", method="POST", json=body) as events:
            async for event in events:
                yield _chunk(events.response.status_code, event.json())

    async def stop(self, request_id: str) -> None:
        body = generate_json(request_id, stop_tensors())
        try:
            await self._http.post(f"/v2/models/{BACKEND}/generate", json=body, timeout=STOP_TIMEOUT)
        except httpx2.TransportError as error:
            logger.debug("stop of request %s failed: %s", request_id, error)

    async def is_ready(self, model: str) -> bool:
        with suppress(httpx2.TransportError):
            return (await self._http.get(f"/v2/models/{model}/ready", timeout=STOP_TIMEOUT)).is_success
        return False

    async def close(self) -> None:
        await self._http.aclose()


def _base_url(url: str) -> str:
    return url if "://" in url else f"http://{url}"


def _deadline(now: float, timeout: float | None) -> float | None:
    return None if timeout is None else now + timeout


def _infer_body(request_id: str, tensors: Tensors) -> tuple[bytes, dict[str, str]]:
    inputs = []
    for name, array in tensors.items():
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    outputs = [InferRequestedOutput(name) for name in ("embedding", "num_input_tokens")]
    body, header_length = InferenceServerClient.generate_request_body(inputs, outputs=outputs, request_id=request_id)
    return body, {} if header_length is None else {HEADER_LENGTH: str(header_length)}


def _embeddings(response: httpx2.Response) -> Embeddings:
    if not response.is_success:
        raise http_error(response.status_code, _json(response).get("error", ""))
    length = response.headers.get(HEADER_LENGTH)
    result = InferenceServerClient.parse_response_body(
        response.content, header_length=None if length is None else int(length)
    )
    return read_embeddings(result)


def _chunk(status: int, fields: Any) -> Chunk:
    if "error" in fields:
        raise http_error(status, fields["error"])
    return read_chunk(fields)


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        return dict(response.json())
    except ValueError:  # not from Triton, but from something on the way to it
        raise http_error(response.status_code, response.text[:200]) from None


def _transport_error(error: httpx2.TransportError, timeout: float | None) -> OrthrusError:
    if isinstance(error, httpx2.TimeoutException):
        return deadline_error(timeout)
    return Unavailable(str(error) or type(error).__name__)
