"""Server-sent events as OpenAI sends them: one JSON document each, `[DONE]` at the end, an error in the place of it."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from openai import BaseModel
from starlette.types import Send

from orthrus_client.gateway.concurrency import until_gone
from orthrus_client.gateway.errors import api_error

DONE = format_sse_event(data_str="[DONE]")


def document(model: BaseModel) -> str:
    """JSON with the fields that were set, which may be null."""
    return model.model_dump_json(exclude_unset=True, warnings=False)  # see `finish_reason` of a piece


def answer(model: BaseModel) -> Response:
    """A whole answer."""
    return Response(document(model), media_type="application/json")


async def stream(request: Request, events: AsyncGenerator[BaseModel]) -> StreamingResponse:
    """An answer in pieces. What fails before the first of them is raised, and so has a status of its own."""
    try:
        first = await until_gone(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(_lines(first, events))


class EventStream(EventSourceResponse):
    """Closes what it streams also when the client has gone in the middle."""

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def _lines(first: BaseModel, events: AsyncGenerator[BaseModel]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        try:
            yield format_sse_event(data_str=document(first))
            async for event in events:
                yield format_sse_event(data_str=document(event))
            yield DONE
        except Exception as error:
            yield format_sse_event(data_str=json.dumps(api_error(error).body()))
