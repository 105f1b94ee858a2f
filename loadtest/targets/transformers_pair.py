"""The pair of servers that needs no vLLM: transformers' continuous batching beside Sentence Transformers.

Each is a process of its own (`transformers_server`), on all cores, asked over HTTP.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib.util import find_spec

import psutil

from loadtest.records import Kind
from loadtest.targets.openai_http import OpenAIClient
from loadtest.targets.server_process import ServerProcess
from loadtest.targets.target import BOTH, Piece, Settings, TargetError

START_SECONDS = 600.0


class TransformersPair:
    """It takes no `options`."""

    kinds = BOTH

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        if options:
            raise ValueError(f"transformers-pair takes no options, got {', '.join(options)}")
        self._settings = settings
        self._servers: list[ServerProcess] = []
        self._clients: dict[Kind, OpenAIClient] = {}

        if find_spec("sentence_transformers") is None:
            raise TargetError('Sentence Transformers is missing: pip install "orthrus-backend[loadtest]"')

    async def start(self) -> None:
        for kind in (Kind.EMBED, Kind.GENERATE):
            self._servers.append(ServerProcess(self._command(kind), self._settings.logs / f"transformers-{kind}.log"))
        lines = await asyncio.gather(*(server.first_line(START_SECONDS) for server in self._servers))
        for kind, address in zip((Kind.EMBED, Kind.GENERATE), lines, strict=True):
            self._clients[kind] = OpenAIClient(address.strip())

    async def embed(self, text: str) -> int:
        return await self._clients[Kind.EMBED].embed(text)

    async def generate(self, prompt: str, output_tokens: int) -> AsyncGenerator[Piece]:
        async with aclosing(self._clients[Kind.GENERATE].generate(prompt, output_tokens)) as pieces:
            async for piece in pieces:
                yield piece

    def processes(self) -> list[psutil.Process]:
        return [process for server in self._servers for process in server.processes()]

    def versions(self) -> Mapping[str, str]:
        return {}

    async def stop(self) -> None:
        for client in self._clients.values():
            await client.close()
        await asyncio.gather(*(server.stop() for server in self._servers))

    def _command(self, kind: Kind) -> list[str]:
        settings = self._settings
        options = {
            "kind": kind.value,
            "model": settings.model,
            "dtype": settings.dtype,
            "max-model-len": settings.max_model_len,
            "max-running": settings.max_running,
            "kv-memory": settings.kv_memory,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "loadtest.targets.transformers_server", *words]
