"""Asks servers that speak OpenAI's HTTP API: completions as a stream with token counts, and embeddings."""

import base64
import json
from collections.abc import AsyncGenerator
from typing import Any, Self

import aiohttp
import numpy as np

from loadtest.targets.target import Piece, TargetError

MODEL = "model"  # the name under which servers are told to serve
_STREAM = {
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


class OpenAIClient:
    """One server at `url`, such as http://127.0.0.1:8000."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20
        )

    async def embed(self, text: str) -> int:
        """Embed a text; its tokens. Raises `TargetError` for anything but a vector."""
        body = {"model": MODEL, "input": text, "encoding_format": "base64"}
        async with self._session.post(f"{self._url}/v1/embeddings", json=body) as response:
            answer = await _checked(response)
        vector = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), np.float32)
        if not vector.size or not np.isfinite(vector).all():
            raise TargetError(f"an embedding is no vector: {vector[:8]}")
        return int(answer["usage"]["prompt_tokens"])

    async def generate(self, prompt: str, output_tokens: int) -> AsyncGenerator[Piece]:
        """Continue a prompt greedily by exactly so many tokens."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": output_tokens, **_STREAM}
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                await _checked(response)
            known = 0
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise TargetError(str(event["error"]))
                usage = event["usage"] or {"prompt_tokens": 0, "completion_tokens": known}
                text = event["choices"][0]["text"] if event["choices"] else ""
                yield Piece(text, usage["completion_tokens"] - known, usage["prompt_tokens"])
                known = usage["completion_tokens"]

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


async def _checked(response: aiohttp.ClientResponse) -> Any:
    if response.status != 200:
        raise TargetError(f"status {response.status}: {(await response.text())[:500]}")
    return await response.json()
