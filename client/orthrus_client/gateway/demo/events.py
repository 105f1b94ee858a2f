"""The events of the page's streams: a name and a JSON object each."""

import json
from typing import Any

from fastapi.sse import format_sse_event

from orthrus_client import Chunk
from orthrus_client.gateway.errors import api_error
from orthrus_client.gateway.load import Reading
from orthrus_client.retrieval import Retrieval, Step

KINDS = ("embed", "prefill", "decode")
COMPOSITIONS = ("embed", "generate", "mixed")


def progress(done: int, total: int) -> bytes:
    """How many documents are embedded."""
    return _event("progress", done=done, total=total)


def round_event(event: Retrieval | Chunk | Step) -> bytes:
    """What happened in a round: it found documents, wrote a piece of text, or came to its end."""
    match event:
        case Retrieval():
            documents = [
                {"id": hit.document.id, "text": hit.document.text, "score": round(hit.score, 4)} for hit in event.hits
            ]
            times = {"embed_seconds": event.embed_seconds, "search_seconds": event.search_seconds}
            return _event("round", round=event.round, query=event.query, documents=documents, **times)
        case Chunk():
            return _event("text", text=event.text)
        case Step():
            answer = event.answer
            return _event(
                "answer",
                text=answer.text.strip(),
                finish_reason=answer.finish_reason,
                num_input_tokens=answer.num_input_tokens,
                num_output_tokens=answer.num_output_tokens,
                generate_seconds=event.generate_seconds,
            )


def done() -> bytes:
    """The last round has ended."""
    return _event("done")


def failure(error: Exception) -> bytes:
    """The end of a stream that failed, as the rest of the gateway tells it."""
    return _event("error", **api_error(error).body()["error"])


def load(before: Reading, now: Reading) -> bytes:
    """What the server computed from one reading to the next."""
    if now.counts is None:
        return _event("unavailable")
    since = now.counts - before.counts if before.counts else None
    return _event(
        "load",
        seconds=now.at - before.at,
        tokens={kind: since.tokens[kind] if since else 0 for kind in KINDS},
        steps={composition: since.steps[composition] if since else 0 for composition in COMPOSITIONS},
    )


def _event(name: str, **data: Any) -> bytes:
    return format_sse_event(event=name, data_str=json.dumps(data))
