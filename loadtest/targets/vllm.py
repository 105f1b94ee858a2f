"""What people run today: one vLLM server for embeddings and one for generation on the same machine, or either alone.

Both are asked over OpenAI's HTTP API. They start one after the other, since each looks at the memory that is free.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import psutil

from loadtest import vllm_environment
from loadtest.records import Kind
from loadtest.targets.openai_http import MODEL, OpenAIClient
from loadtest.targets.server_process import ServerProcess, free_port
from loadtest.targets.target import Piece, Settings, TargetError

START_SECONDS = 900.0
GIB = 1 << 30
POOLING = {"pooling_type": "MEAN"}


@dataclass(frozen=True, slots=True)
class Part:
    """One server of an arrangement: what it does and on which cores."""

    kind: Kind
    cores: Sequence[int]


def pinned() -> list[Part]:
    """Each on its half of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise TargetError(f"{len(cores)} core: two servers cannot have cores of their own; use vllm-shared")
    half = len(cores) // 2
    return [Part(Kind.EMBED, cores[:half]), Part(Kind.GENERATE, cores[half:])]


def shared() -> list[Part]:
    """Both on all cores."""
    return [*alone(Kind.EMBED), *alone(Kind.GENERATE)]


def alone(kind: Kind) -> list[Part]:
    """One on all cores."""
    return [Part(kind, sorted(os.sched_getaffinity(0)))]


class Vllm:
    """`options` go to `vllm serve`, of all parts."""

    def __init__(self, settings: Settings, options: Mapping[str, str], parts: Sequence[Part]) -> None:
        self.kinds = frozenset(part.kind for part in parts)
        self._settings = settings
        self._options = options
        self._parts = parts
        self._servers: list[ServerProcess] = []
        self._clients: dict[Kind, OpenAIClient] = {}
        try:
            self._program = str(vllm_environment.program())
        except RuntimeError as error:
            raise TargetError(str(error)) from error

    async def start(self) -> None:
        try:
            common = vllm_environment.variables()
        except RuntimeError as error:
            raise TargetError(str(error)) from error
        for part in self._parts:
            port = free_port()
            command = [self._program, "serve", str(self._settings.model), f"--port={port}", *self._arguments(part.kind)]
            log = self._settings.logs / f"vllm-{part.kind}.log"
            server = ServerProcess(command, log, common | self._variables(part), announces=False)
            self._servers.append(server)
            await server.answers(f"http://127.0.0.1:{port}/health", START_SECONDS)
            self._clients[part.kind] = OpenAIClient(f"http://127.0.0.1:{port}")

    async def embed(self, text: str) -> int:
        return await self._clients[Kind.EMBED].embed(text)

    async def generate(self, prompt: str, output_tokens: int) -> AsyncGenerator[Piece]:
        async with aclosing(self._clients[Kind.GENERATE].generate(prompt, output_tokens)) as pieces:
            async for piece in pieces:
                yield piece

    def processes(self) -> list[psutil.Process]:
        return [process for server in self._servers for process in server.processes()]

    def versions(self) -> Mapping[str, str]:
        try:
            return vllm_environment.versions()
        except (OSError, subprocess.CalledProcessError) as error:
            raise TargetError(f"vLLM's environment does not run: {error}") from error

    async def stop(self) -> None:
        for client in self._clients.values():
            await client.close()
        await asyncio.gather(*(server.stop() for server in self._servers))

    def _arguments(self, kind: Kind) -> list[str]:
        settings = self._settings
        arguments = {
            "host": "127.0.0.1",
            "served-model-name": MODEL,
            "dtype": settings.dtype,
            "max-model-len": str(settings.max_model_len),
            "max-num-seqs": str(settings.max_running),
        }
        if kind is Kind.EMBED:
            arguments |= {"runner": "pooling", "convert": "embed", "pooler-config": json.dumps(POOLING)}
        arguments |= {name.replace("_", "-"): value for name, value in self._options.items()}
        return [f"--{name}={value}" for name, value in arguments.items()]

    def _variables(self, part: Part) -> dict[str, str]:
        memory = max(1, self._settings.kv_memory // GIB) if part.kind is Kind.GENERATE else 1  # GiB; texts keep nothing
        return {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, part.cores)),
            "VLLM_CPU_KVCACHE_SPACE": str(memory),
        }
