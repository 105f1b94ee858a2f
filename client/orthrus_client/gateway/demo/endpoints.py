"""/demo: what the page asks for. The API key is needed here as below /v1."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import PurePath
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, StringConstraints

from orthrus_client.documents import split_text
from orthrus_client.gateway.context import Gateway, GatewayDep
from orthrus_client.gateway.demo import events
from orthrus_client.gateway.demo.corpora import SAMPLE, Corpus
from orthrus_client.gateway.demo.state import DemoDep
from orthrus_client.gateway.errors import ApiError, invalid
from orthrus_client.gateway.load import INTERVAL_SECONDS, Load
from orthrus_client.gateway.schemas import STRICT
from orthrus_client.gateway.streaming import EventStream
from orthrus_client.retrieval import IterativeRetriever

UPLOAD_BYTES = 256 * 1024
NAME_CHARACTERS = 80
CHUNK_CHARACTERS = 600  # about 150 tokens of English: room for ten in a prompt
MOST_ROUNDS, MOST_DOCUMENTS, MOST_TOKENS = 5, 10, 512

router = APIRouter(prefix="/demo", include_in_schema=False)


class Question(BaseModel):
    """The body of /demo/ask."""

    model_config = STRICT

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    corpus: str = SAMPLE
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 3
    documents: Annotated[int, Field(ge=1, le=MOST_DOCUMENTS)] = 5
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = 48


@router.get("")
async def describe(gateway: GatewayDep, demo: DemoDep) -> dict[str, Any]:
    """What there is to ask, and within which limits."""
    return {
        "models": await gateway.catalog.names(),
        "sample": {
            "id": SAMPLE,
            "name": demo.sample.company,
            "documents": len(demo.sample.documents),
            "questions": [question.text for question in demo.sample.questions],
        },
        "upload_bytes": UPLOAD_BYTES,
    }


@router.post("/documents")
async def upload(
    request: Request,
    demo: DemoDep,
    # Another site's page can make a browser send plain text here, but no header of this name.
    x_document_name: Annotated[str, Header(description="The file's name, percent-encoded.")] = "",
    content_type: Annotated[str, Header()] = "",
) -> dict[str, Any]:
    """Keeps a text, cut into pieces, and says by which id to ask over it. It is embedded when that happens."""
    if content_type.replace(" ", "").lower() not in ("text/plain", "text/plain;charset=utf-8"):
        raise ApiError(415, f"a text is uploaded as text/plain in UTF-8, not as {content_type!r}")
    if not x_document_name:
        raise invalid("the header X-Document-Name is missing: it holds the file's name", "X-Document-Name")
    name = PurePath(unquote(x_document_name)).name[:NAME_CHARACTERS] or "text"
    documents = await asyncio.to_thread(split_text, name, await _text(request), chunk_characters=CHUNK_CHARACTERS)
    if not documents:
        raise invalid("there is no text in the file")
    return {"id": demo.corpora.add(Corpus(name, documents)), "name": name, "documents": len(documents)}


@router.post("/ask")
async def ask(body: Question, gateway: GatewayDep, demo: DemoDep) -> Response:
    """Answers a question in rounds, and streams what happens in them."""
    return EventStream(_rounds(body, demo.corpora.get(body.corpus), gateway))


@router.get("/load")
async def watch(demo: DemoDep) -> Response:
    """Streams what the server computes, until the client has seen enough or the gateway ends."""
    return EventStream(_load(demo.load, demo.closing))


async def _rounds(question: Question, corpus: Corpus, gateway: Gateway) -> AsyncGenerator[bytes]:
    client, timeout = gateway.client, gateway.timeout
    try:
        indexing = corpus.indexing(await client.parameters())
        async with aclosing(indexing.run(client, timeout)) as counts:
            async for done in counts:
                yield events.progress(done, len(corpus.documents))
        retriever = IterativeRetriever(
            client,
            indexing.index,
            rounds=question.rounds,
            top_k=question.documents,
            sampling={"max_tokens": question.max_tokens, "temperature": 0.0},
        )
        async with aclosing(retriever.stream(question.question, timeout=timeout)) as steps:
            async for step in steps:
                yield events.round_event(step)
        yield events.done()
    except Exception as error:
        yield events.failure(error)


async def _load(load: Load, closing: asyncio.Event) -> AsyncGenerator[bytes]:
    before = await load.read()
    yield events.load(before, before)
    while not closing.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), INTERVAL_SECONDS)
        now = await load.read()
        if now.at > before.at:
            yield events.load(before, now)
            before = now


async def _text(request: Request) -> str:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > UPLOAD_BYTES:
            message = f"the file is larger than {UPLOAD_BYTES} bytes, which is the limit"
            raise ApiError(413, message, code="request_too_large")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"the file is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise invalid(f"the file is not text: it holds a NUL (character {text.index(chr(0))})")
    return text
