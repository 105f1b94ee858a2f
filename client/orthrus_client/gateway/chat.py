"""/v1/chat/completions."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import Response
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs

from orthrus_client import Chunk, Generation, Message, Sampling
from orthrus_client.gateway.concurrency import until_gone
from orthrus_client.gateway.context import Gateway, GatewayDep
from orthrus_client.gateway.errors import invalid
from orthrus_client.gateway.logprobs import chat_logprobs
from orthrus_client.gateway.messages import plain_messages
from orthrus_client.gateway.parameters import refuse_unsupported, sampling, wants_usage
from orthrus_client.gateway.schemas import ChatBody, ChatRequest
from orthrus_client.gateway.streaming import answer, stream
from orthrus_client.gateway.usage import Meter, finish_reason, total_usage

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(request: Request, body: ChatBody, gateway: GatewayDep) -> Response:
    """The answer to a conversation, for which the model's own chat template makes the prompt."""
    asked = _asked(body, await gateway.catalog.generator(body["model"]))
    if body.get("stream"):
        return await stream(request, _pieces(gateway, asked, wants_usage(body)))
    return answer(await until_gone(request, _whole(gateway, asked)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, and what all parts of its answer share."""

    model: str
    messages: Sequence[Message]
    sampling: Sampling
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, choices: list[ChunkChoice], **usage: Any) -> ChatCompletionChunk:
        """A piece of the answer."""
        kind: Any = "chat.completion.chunk"
        return ChatCompletionChunk(
            id=self.id, created=self.created, model=self.model, object=kind, choices=choices, **usage
        )


def _asked(body: ChatRequest, adapter: str | None) -> _Asked:
    refuse_unsupported(body)
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if top is not None and not wanted:
        raise invalid("top_logprobs goes with logprobs: true only", "top_logprobs")
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    options = sampling(body, adapter=adapter, logprobs=(top or 0) if wanted else None)
    options["max_tokens"] = limit  # None is no omission: an answer may be as long as the model's limit allows
    return _Asked(body["model"], plain_messages(body["messages"]), options)


async def _whole(gateway: Gateway, asked: _Asked) -> ChatCompletion:
    answers = await gateway.client.chat_n(asked.messages, timeout=gateway.timeout, **asked.sampling)
    return ChatCompletion(
        id=asked.id,
        created=asked.created,
        model=asked.model,
        object="chat.completion",
        choices=[_choice(index, text) for index, text in enumerate(answers)],
        usage=total_usage([answers]),
    )


def _choice(index: int, text: Generation) -> Choice:
    return Choice(
        index=index,
        message=ChatCompletionMessage(role="assistant", content=text.text, refusal=None),
        finish_reason=finish_reason(text.finish_reason),
        logprobs=ChoiceLogprobs(content=chat_logprobs(text.logprobs), refusal=None) if text.logprobs else None,
    )


async def _pieces(gateway: Gateway, asked: _Asked, with_usage: bool) -> AsyncGenerator[ChatCompletionChunk]:
    meter = Meter()
    begun: set[int] = set()
    no_usage = {"usage": None} if with_usage else {}
    chunks = gateway.client.stream_chat(asked.messages, timeout=gateway.timeout, **asked.sampling)
    async with aclosing(chunks):
        async for chunk in chunks:
            meter.add(0, chunk)
            if chunk.index not in begun:
                begun.add(chunk.index)
                first = ChoiceDelta(role="assistant", content="", refusal=None)
                yield asked.chunk([_piece(chunk.index, first)], **no_usage)
            if chunk.text or chunk.logprobs:
                yield asked.chunk([_piece(chunk.index, ChoiceDelta(content=chunk.text), chunk)], **no_usage)
            if chunk.finish_reason:
                end = _piece(chunk.index, ChoiceDelta())
                end.finish_reason = finish_reason(chunk.finish_reason)
                yield asked.chunk([end], **no_usage)
    if with_usage:
        yield asked.chunk([], usage=meter.read())


def _piece(index: int, delta: ChoiceDelta, chunk: Chunk | None = None) -> ChunkChoice:
    tokens = chunk.logprobs if chunk else None
    return ChunkChoice(
        index=index,
        delta=delta,
        finish_reason=None,
        logprobs=ChunkLogprobs(content=chat_logprobs(tokens), refusal=None) if tokens else None,
    )
