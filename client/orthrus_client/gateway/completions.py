"""/v1/completions."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import Response
from openai.types import Completion, CompletionChoice

from orthrus_client import Chunk, Generation, Sampling
from orthrus_client.gateway.concurrency import all_of, merged, until_gone
from orthrus_client.gateway.context import Gateway, GatewayDep
from orthrus_client.gateway.errors import invalid
from orthrus_client.gateway.logprobs import completion_logprobs
from orthrus_client.gateway.parameters import refuse_unsupported, sampling, wants_usage
from orthrus_client.gateway.schemas import CompletionBody, CompletionRequest, Prompt, Prompts
from orthrus_client.gateway.streaming import answer, stream
from orthrus_client.gateway.usage import Meter, finish_reason, total_usage

router = APIRouter()


@router.post("/v1/completions", response_model=Completion)
async def create_completion(request: Request, body: CompletionBody, gateway: GatewayDep) -> Response:
    """The texts that follow one or several prompts."""
    asked = _asked(body, await gateway.catalog.generator(body["model"]))
    if body.get("stream"):
        return await stream(request, _pieces(gateway, asked, wants_usage(body)))
    return answer(await until_gone(request, _whole(gateway, asked)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, and what all parts of its answer share."""

    model: str
    prompts: Sequence[Prompt]
    sampling: Sampling
    n: int
    echo: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, choices: list[CompletionChoice], **usage: Any) -> Completion:
        """The whole answer, or a piece of it."""
        kind: Any = "text_completion"
        return Completion(id=self.id, created=self.created, model=self.model, object=kind, choices=choices, **usage)

    def prefix(self, position: int) -> str:
        """What comes before the text that follows a prompt."""
        return str(self.prompts[position]) if self.echo else ""


def _asked(body: CompletionRequest, adapter: str | None) -> _Asked:
    refuse_unsupported(body)
    n, best_of = body.get("n") or 1, body.get("best_of")
    if best_of not in (None, n):
        raise invalid(f"best_of {best_of} is not supported: it may only be the same as n, which is {n}", "best_of")
    prompts, echo, logprobs = _prompts(body["prompt"]), bool(body.get("echo")), body.get("logprobs")
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise invalid("echo needs prompts that are texts, not token ids", "echo")
    if echo and logprobs is not None:
        raise invalid("echo does not go with logprobs: those of a prompt are not computed", "echo")
    options = sampling(body, adapter=adapter, max_tokens=body.get("max_tokens"), logprobs=logprobs)
    return _Asked(body["model"], prompts, options, n, echo)


def _prompts(given: Prompt | Prompts) -> Sequence[Prompt]:
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return given


async def _whole(gateway: Gateway, asked: _Asked) -> Completion:
    answers = await all_of(
        [gateway.client.generate_n(prompt, timeout=gateway.timeout, **asked.sampling) for prompt in asked.prompts]
    )
    choices = [
        _choice(position * asked.n + index, asked.prefix(position), text)
        for position, texts in enumerate(answers)
        for index, text in enumerate(texts)
    ]
    return asked.completion(choices, usage=total_usage(answers))


def _choice(index: int, prefix: str, text: Generation) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=prefix + text.text,
        finish_reason=finish_reason(text.finish_reason),
        logprobs=completion_logprobs(text.logprobs, 0) if text.logprobs else None,
    )


async def _pieces(gateway: Gateway, asked: _Asked, with_usage: bool) -> AsyncGenerator[Completion]:
    streams = [gateway.client.stream(prompt, timeout=gateway.timeout, **asked.sampling) for prompt in asked.prompts]
    meter = Meter()
    lengths: dict[int, int] = {}  # characters so far, by choice
    no_usage = {"usage": None} if with_usage else {}
    async with aclosing(merged(streams)) as chunks:
        async for position, chunk in chunks:
            meter.add(position, chunk)
            index = position * asked.n + chunk.index
            prefix = "" if index in lengths else asked.prefix(position)
            yield asked.completion([_piece(index, prefix, chunk, lengths.get(index, 0))], **no_usage)
            lengths[index] = lengths.get(index, 0) + len(prefix) + len(chunk.text)
    if with_usage:
        yield asked.completion([], usage=meter.read())


def _piece(index: int, prefix: str, chunk: Chunk, start: int) -> CompletionChoice:
    ending: Any = finish_reason(chunk.finish_reason) if chunk.finish_reason else None
    return CompletionChoice.model_construct(  # not checked: the type is OpenAI's for pieces too, but needs an ending
        index=index,
        text=prefix + chunk.text,
        finish_reason=ending,
        logprobs=completion_logprobs(chunk.logprobs, start) if chunk.logprobs else None,
    )
