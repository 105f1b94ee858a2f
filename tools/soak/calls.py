"""Calls that a soak makes: both kinds, every way in, and every way to end. Speaks the protocols raw, to count FINALs.

Each call returns how it was answered; an answer that breaks the contract (none, two FINALs, something after FINAL) is
`Answer.LOST`, which the soak counts.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

import grpc.aio
import httpx2
import numpy as np
from numpy.typing import NDArray
from orthrus_client.contract import grpc_fields, grpc_request, stop_tensors
from tritonclient.grpc import service_pb2, service_pb2_grpc

LONGEST_TEXT = 60  # words
PATIENCE_SECONDS = 120.0  # for one answer; then it counts as lost
_WORDS = ("river", "engine", "answer", "blue", "seven", "harbour", "quiet", "letter", "copper", "window")


class Fate(StrEnum):
    """What the caller means to do with its request."""

    FINISH = "finish"
    LEAVE = "leave"  # closes the connection
    STOP = "stop"  # asks for the end by id
    TIMEOUT = "timeout"  # gives it too little time
    BAD = "bad input"


class Answer(StrEnum):
    """What became of it, as the caller saw it."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    LEFT = "left"  # the caller closed the connection first
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to be made."""

    way: str
    fate: Fate
    seed: int


class Caller:
    """Makes calls to one server."""

    def __init__(self, http: str, grpc_address: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=f"http://{http}/v2/models", timeout=PATIENCE_SECONDS, limits=httpx2.Limits(max_connections=None)
        )
        self._channel = grpc.aio.insecure_channel(grpc_address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.ways: Mapping[str, Callable[[Call, random.Random], Awaitable[Answer]]] = {
            "embed, gRPC": self._embed_grpc,
            "embed, HTTP": self._embed_http,
            "embed, direct": self._embed_direct,
            "generate, gRPC": self._generate_grpc,
            "generate, HTTP": self._generate_http,
            "generate, HTTP stream": self._generate_http_stream,
            "generate, direct": self._generate_direct,
        }

    async def make(self, call: Call) -> Answer:
        """Make one call and see it through."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self.ways[call.way](call, random.Random(call.seed))
        except TimeoutError:
            return Answer.LOST

    async def close(self) -> None:
        """Close the connections."""
        await self._channel.close()
        await self._http.aclose()

    async def _embed_grpc(self, call: Call, draw: random.Random) -> Answer:
        request = _request("embed", call, _embed_tensors(call, draw))
        unary = self._stub.ModelInfer(request)
        return await self._with_fate(call, draw, request.id, _unary(unary), unary.cancel)

    async def _embed_http(self, call: Call, draw: random.Random) -> Answer:
        request_id, tensors = uuid4().hex, _embed_tensors(call, draw)
        body: dict[str, Any] = {
            "id": request_id,
            "inputs": [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": "BYTES",
                    "data": [item.decode() for item in array],
                }
                for name, array in tensors.items()
            ],
        }
        if call.fate is Fate.TIMEOUT:
            body["parameters"] = {"timeout": _microseconds(draw)}
        return await self._post(call, draw, request_id, "/embed/infer", body)

    async def _embed_direct(self, call: Call, draw: random.Random) -> Answer:
        return await self._stream(call, draw, "orthrus", {"task": _strings("embed"), **_embed_tensors(call, draw)})

    async def _generate_grpc(self, call: Call, draw: random.Random) -> Answer:
        return await self._stream(call, draw, "generate", _generate_tensors(call, draw))

    async def _generate_direct(self, call: Call, draw: random.Random) -> Answer:
        return await self._stream(call, draw, "orthrus", _generate_tensors(call, draw))

    async def _generate_http(self, call: Call, draw: random.Random) -> Answer:
        request_id = uuid4().hex
        return await self._post(call, draw, request_id, "/generate/generate", _body(request_id, call, draw))

    async def _generate_http_stream(self, call: Call, draw: random.Random) -> Answer:
        request_id = uuid4().hex
        body = _body(request_id, call, draw) | {"stream": True}
        return await self._post(call, draw, request_id, "/generate/generate_stream", body)

    async def _stream(self, call: Call, draw: random.Random, model: str, tensors: Mapping[str, NDArray[Any]]) -> Answer:
        request = _request(model, call, tensors)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        stream = self._stub.ModelStreamInfer(iter([request]))
        return await self._with_fate(call, draw, request.id, _finals(stream), stream.cancel)

    async def _post(self, call: Call, draw: random.Random, request_id: str, path: str, body: object) -> Answer:
        answering = asyncio.ensure_future(self._read(path, body))
        return await self._with_fate(call, draw, request_id, answering, answering.cancel)

    async def _read(self, path: str, body: object) -> Answer:
        try:
            async with self._http.stream("POST", path, json=body) as response:
                text = (await response.aread()).decode()
        except httpx2.HTTPError:
            return Answer.LOST
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        try:
            last = json.loads(events[-1])
        except (IndexError, ValueError):
            return Answer.LOST
        if "error" in last:
            return _refusal(last["error"])
        return _by_reason(last.get("finish_reason", ""))

    async def _with_fate(
        self,
        call: Call,
        draw: random.Random,
        request_id: str,
        answer: Awaitable[Answer],
        leave: Callable[[], object],
    ) -> Answer:
        answering = asyncio.ensure_future(answer)
        if call.fate in (Fate.LEAVE, Fate.STOP):
            await asyncio.wait([answering], timeout=draw.random() * 0.3)
        if call.fate is Fate.STOP and not answering.done():
            await self._stop(request_id)
        if call.fate is Fate.LEAVE and not answering.done():
            leave()
            await asyncio.wait([answering])
            await self._stop(request_id)  # as the client package does: Triton does not tell the steps of an ensemble
            return Answer.LEFT
        return await answering

    async def _stop(self, request_id: str) -> None:
        request = grpc_request("orthrus", request_id, stop_tensors())
        async for _ in self._stub.ModelStreamInfer(iter([request])):
            pass


async def _unary(call: Awaitable[service_pb2.ModelInferResponse]) -> Answer:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return _refusal(error.details() or "")
    return Answer.FINISHED


async def _finals(stream: Any) -> Answer:
    """Read a stream to its end; there must be one FINAL, and nothing after it."""
    answer: Answer | None = None
    try:
        async for message in stream:
            if answer is not None:
                return Answer.LOST
            if message.error_message:
                answer = _refusal(message.error_message)
            elif message.infer_response.parameters["triton_final_response"].bool_param:
                answer = _by_reason(grpc_fields(message.infer_response).get("finish_reason", ""))
    except grpc.aio.AioRpcError:
        return Answer.LOST
    return answer or Answer.LOST


def _refusal(message: str) -> Answer:
    if "cancelled" in message:
        return Answer.CANCELLED
    return Answer.TIMED_OUT if "time is over" in message else Answer.REFUSED


def _by_reason(reasons: str | list[str]) -> Answer:
    """`reasons` holds one for each sequence; these calls ask for one sequence, and HTTP then sends a plain text."""
    reason = reasons if isinstance(reasons, str) else next(iter(reasons), "")
    return {"cancelled": Answer.CANCELLED, "timeout": Answer.TIMED_OUT}.get(reason, Answer.FINISHED)


def _request(model: str, call: Call, tensors: Mapping[str, NDArray[Any]]) -> service_pb2.ModelInferRequest:
    request = grpc_request(model, uuid4().hex, tensors)
    if call.fate is Fate.TIMEOUT:
        request.parameters["timeout"].int64_param = _microseconds(random.Random(call.seed))
    return request


def _microseconds(draw: random.Random) -> int:
    return draw.randrange(1, 200_000)


def _text(draw: random.Random) -> str:
    """Many short texts and few long ones: each length twice as likely as one of twice as many words."""
    return " ".join(draw.choices(_WORDS, k=int(LONGEST_TEXT ** draw.random())))


def _strings(*values: str) -> NDArray[np.object_]:
    return np.array([value.encode() for value in values], dtype=np.object_)


def _embed_tensors(call: Call, draw: random.Random) -> dict[str, NDArray[Any]]:
    texts = [_text(draw) for _ in range(draw.randrange(1, 4))]
    options: dict[str, object] = {"pooling": draw.choice(["mean", "last", "cls", "weighted_mean"])}
    if call.fate is Fate.BAD:
        faults: list[tuple[list[str], dict[str, object]]] = [
            (["good", ""], options),
            (texts, {"dimensions": 0}),
            (texts, {"adapter": "nobody"}),
            (["x " * 9000], {}),
        ]
        texts, options = draw.choice(faults)
    return {"text_input": _strings(*texts), "embedding_parameters": _strings(json.dumps(options))}


def _sampling(call: Call, draw: random.Random) -> dict[str, object]:
    slow = call.fate in (Fate.LEAVE, Fate.STOP, Fate.TIMEOUT)
    sampling: dict[str, object] = {
        "max_tokens": draw.randrange(16, 64) if slow else draw.randrange(1, 5),
        "ignore_eos": slow,
        "temperature": draw.choice([0, 0.8]),
    }
    if call.fate is Fate.BAD:
        sampling |= draw.choice([{"top_p": 7}, {"max_tokens": -1}, {"no_such_key": 1}, {"logit_bias": {"999999": 1}}])
    return sampling


def _generate_tensors(call: Call, draw: random.Random) -> dict[str, NDArray[Any]]:
    return {
        "text_input": _strings(_text(draw)),
        "sampling_parameters": _strings(json.dumps(_sampling(call, draw))),
        "stream": np.array([draw.random() < 0.5]),
        "exclude_input_in_output": np.array([True]),
        "return_finish_reason": np.array([True]),
    }


def _body(request_id: str, call: Call, draw: random.Random) -> dict[str, object]:
    body: dict[str, object] = {
        "id": request_id,
        "text_input": _text(draw),
        "sampling_parameters": json.dumps(_sampling(call, draw)),
        "exclude_input_in_output": True,
        "return_finish_reason": True,
    }
    return body | ({"timeout": _microseconds(draw)} if call.fate is Fate.TIMEOUT else {})
