"""gRPC: unary for embeddings, one ModelStreamInfer call per generation.

Uses Triton's generated stub rather than tritonclient's client: that one has a single stream per client, while here
every generation is a call of its own on a shared channel, with its own deadline and cancellation, from any thread.

An error in a stream is a text without a code. The metadata `triton_grpc_error`, which asks for a code, is not sent: it
takes a few dozen such errors to kill a tritonserver 2.51.
"""

import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import suppress
from copy import copy
from typing import Self

import grpc
import grpc.aio
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc

from orthrus_client.contract import (
    BACKEND,
    EMBED,
    TOKEN_IDS,
    ChunkReader,
    Tensors,
    generation_model,
    grpc_fields,
    grpc_request,
    read_embeddings,
    stop_tensors,
)
from orthrus_client.deadline import Deadline
from orthrus_client.errors import grpc_error, uncoded_error
from orthrus_client.results import Chunk, Embeddings
from orthrus_client.security import Tls
from orthrus_client.transport import CONFIG_TIMEOUT, STOP_TIMEOUT

CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # By default gRPC connects anew after 1, 1.6, ... 120 s and fails every call until then: retries would be in vain.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]

logger = logging.getLogger(__name__)


class GrpcTransport:
    """gRPC for threads."""

    def __init__(self, url: str, tls: Tls | None, headers: Mapping[str, str]) -> None:
        target = _target(url)
        self._channel = (
            grpc.insecure_channel(target, CHANNEL_OPTIONS)
            if tls is None
            else grpc.secure_channel(target, tls.credentials(), CHANNEL_OPTIONS)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple(headers.items())

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        other = copy(self)
        other._metadata = tuple((dict(self._metadata) | dict(headers)).items())
        return other

    def embed(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        if TOKEN_IDS in tensors:
            return self._embed_ids(request_id, tensors, deadline)
        request = self._request(EMBED, request_id, tensors, deadline)
        try:
            response = self._stub.ModelInfer(request, timeout=deadline.left(), metadata=self._metadata)
        except grpc.RpcError as error:
            raise grpc_error(error, deadline.timeout) from None
        return read_embeddings(InferResult(response))

    def generate(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Generator[Chunk]:
        request = self._request(generation_model(tensors), request_id, tensors, deadline)
        reader = ChunkReader()
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline.left(), metadata=self._metadata)
        try:
            for message in call:
                yield from reader.read(grpc_fields(_response(message)))
        except grpc.RpcError as error:
            raise grpc_error(error, deadline.timeout) from None
        finally:
            call.cancel()

    def _embed_ids(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        """Only the backend itself takes token ids, and it answers in a stream."""
        request = self._request(BACKEND, request_id, tensors, deadline)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline.left(), metadata=self._metadata)
        try:
            return read_embeddings(InferResult(_response(next(call))))
        except grpc.RpcError as error:
            raise grpc_error(error, deadline.timeout) from None
        finally:
            call.cancel()

    def stop(self, request_id: str) -> None:
        request = grpc_request(BACKEND, request_id, stop_tensors())
        try:
            list(self._stub.ModelStreamInfer(iter([request]), timeout=STOP_TIMEOUT, metadata=self._metadata))
        except grpc.RpcError as error:
            logger.debug("stop of request %s failed: %s", request_id, error)

    def is_ready(self, model: str) -> bool:
        with suppress(grpc.RpcError):
            request = service_pb2.ModelReadyRequest(name=model)
            return bool(self._stub.ModelReady(request, timeout=STOP_TIMEOUT, metadata=self._metadata).ready)
        return False

    def parameters(self, model: str) -> Mapping[str, str]:
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            answer = self._stub.ModelConfig(request, timeout=CONFIG_TIMEOUT, metadata=self._metadata)
        except grpc.RpcError as error:
            raise grpc_error(error, CONFIG_TIMEOUT) from None
        return {name: value.string_value for name, value in answer.config.parameters.items()}

    def close(self) -> None:
        self._channel.close()

    def _request(
        self, model: str, request_id: str, tensors: Tensors, deadline: Deadline
    ) -> service_pb2.ModelInferRequest:
        return grpc_request(model, request_id, tensors, deadline.for_server(), dict(self._metadata))


class AsyncGrpcTransport:
    """gRPC for asyncio."""

    def __init__(self, url: str, tls: Tls | None, headers: Mapping[str, str]) -> None:
        target = _target(url)
        self._channel = (
            grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
            if tls is None
            else grpc.aio.secure_channel(target, tls.credentials(), CHANNEL_OPTIONS)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple(headers.items())

    def with_headers(self, headers: Mapping[str, str]) -> Self:
        other = copy(self)
        other._metadata = tuple((dict(self._metadata) | dict(headers)).items())
        return other

    async def embed(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        if TOKEN_IDS in tensors:
            return await self._embed_ids(request_id, tensors, deadline)
        request = self._request(EMBED, request_id, tensors, deadline)
        try:
            response = await self._stub.ModelInfer(request, timeout=deadline.left(), metadata=self._metadata)
        except grpc.RpcError as error:
            raise grpc_error(error, deadline.timeout) from None
        return read_embeddings(InferResult(response))

    async def generate(self, request_id: str, tensors: Tensors, deadline: Deadline) -> AsyncGenerator[Chunk]:
        request = self._request(generation_model(tensors), request_id, tensors, deadline)
        reader = ChunkReader()
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline.left(), metadata=self._metadata)
        try:
            async for message in call:
                for chunk in reader.read(grpc_fields(_response(message))):
                    yield chunk
        except grpc.RpcError as error:
            raise grpc_error(error, deadline.timeout) from None
        finally:
            call.cancel()

    async def _embed_ids(self, request_id: str, tensors: Tensors, deadline: Deadline) -> Embeddings:
        """Only the backend itself takes token ids, and it answers in a stream."""
        request = self._request(BACKEND, request_id, tensors, deadline)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline.left(), metadata=self._metadata)
        try:
            return read_embeddings(InferResult(_response(await anext(aiter(call)))))
        except grpc.RpcError as error:
            raise grpc_error(error, deadline.timeout) from None
        finally:
            call.cancel()

    async def stop(self, request_id: str) -> None:
        request = grpc_request(BACKEND, request_id, stop_tensors())
        try:
            call = self._stub.ModelStreamInfer(iter([request]), timeout=STOP_TIMEOUT, metadata=self._metadata)
            async for _ in call:
                pass
        except grpc.RpcError as error:
            logger.debug("stop of request %s failed: %s", request_id, error)

    async def is_ready(self, model: str) -> bool:
        with suppress(grpc.RpcError):
            request = service_pb2.ModelReadyRequest(name=model)
            answer = await self._stub.ModelReady(request, timeout=STOP_TIMEOUT, metadata=self._metadata)
            return bool(answer.ready)
        return False

    async def parameters(self, model: str) -> Mapping[str, str]:
        request = service_pb2.ModelConfigRequest(name=model)
        try:
            answer = await self._stub.ModelConfig(request, timeout=CONFIG_TIMEOUT, metadata=self._metadata)
        except grpc.RpcError as error:
            raise grpc_error(error, CONFIG_TIMEOUT) from None
        return {name: value.string_value for name, value in answer.config.parameters.items()}

    async def close(self) -> None:
        await self._channel.close()

    def _request(
        self, model: str, request_id: str, tensors: Tensors, deadline: Deadline
    ) -> service_pb2.ModelInferRequest:
        return grpc_request(model, request_id, tensors, deadline.for_server(), dict(self._metadata))


def _target(url: str) -> str:
    if url.startswith(("http://", "https://")):
        raise ValueError(f'{url!r} is an address for HTTP: pass protocol="http", or host:port of the gRPC service')
    return url


def _response(message: service_pb2.ModelStreamInferResponse) -> service_pb2.ModelInferResponse:
    if message.error_message:
        raise uncoded_error(message.error_message)
    return message.infer_response
