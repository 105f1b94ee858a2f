"""/v1/embeddings."""

import base64
from typing import Any, cast

import numpy as np
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from openai.types import CreateEmbeddingResponse

from orthrus_client import Embeddings, EmbedOptions
from orthrus_client.gateway.concurrency import until_gone
from orthrus_client.gateway.context import GatewayDep
from orthrus_client.gateway.schemas import EmbeddingBody, Inputs, Prompt

_OPTIONS = ("dimensions", "pooling", "normalize", "prompt_name", "instruction", "truncate")

router = APIRouter()


@router.post("/v1/embeddings", response_model=CreateEmbeddingResponse)
async def create_embeddings(request: Request, body: EmbeddingBody, gateway: GatewayDep) -> Response:
    """The vectors of texts or of token ids, in their order."""
    adapter = await gateway.catalog.embedder(body["model"])
    given = {name: body[name] for name in _OPTIONS if name in body}  # type: ignore[literal-required]  # from a tuple
    options = cast(EmbedOptions, given | ({"adapter": adapter} if adapter else {}))
    call = gateway.client.embed_with_usage(_inputs(body["input"]), timeout=gateway.timeout, **options)
    result = await until_gone(request, call)
    return _response(result, body["model"], body.get("encoding_format", "float"))


def _inputs(given: Prompt | Inputs) -> Any:
    """Texts, or lists of token ids."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given


def _response(result: Embeddings, model: str, encoding: str) -> Response:
    """Written without OpenAI's types: those check every number of every vector, and know no base64."""
    tokens = int(result.num_input_tokens.sum())
    vectors = [_base64(row) for row in result.vectors] if encoding == "base64" else result.vectors
    content = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def _base64(row: NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode()
