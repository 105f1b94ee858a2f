"""Orthrus as it is deployed: `orthrus serve`, asked through Triton's ensembles over gRPC with the client package."""

import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from inspect import signature
from pathlib import Path

import psutil
from orthrus_client import AsyncOrthrusClient

from loadtest.targets.server_process import ServerProcess
from loadtest.targets.target import BOTH, Piece, Settings, TargetError
from orthrus_backend.serve.command import serve

START_SECONDS = 900.0
FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


class Orthrus:
    """`options` are those of `orthrus serve` or parameters of the model, with underscores: `policy`, `token_budget`."""

    kinds = BOTH

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        common = {
            "model": str(settings.model),
            "dtype": settings.dtype,
            "max_model_len": str(settings.max_model_len),
            "max_running": str(settings.max_running),
            "kv_memory": str(settings.kv_memory),
            "request_log": "false",
        }
        named = common | dict(options)
        self._arguments = [argument for name, value in named.items() for argument in _option(name, value)]
        self._log = settings.logs / "orthrus.log"
        self._server: ServerProcess | None = None
        self._client: AsyncOrthrusClient | None = None
        self._program = Path(sys.executable).with_name("orthrus")
        if not self._program.exists():
            raise TargetError(f"{self._program} is missing: install this project into the environment (make install)")

    async def start(self) -> None:
        self._server = ServerProcess([str(self._program), "serve", *FREE_PORTS, *self._arguments], self._log)
        endpoints = json.loads(await self._server.first_line(START_SECONDS))
        self._client = AsyncOrthrusClient(endpoints["grpc"], retries=0)

    async def embed(self, text: str) -> int:
        assert self._client is not None
        return int((await self._client.embed_with_usage(text)).num_input_tokens[0])

    async def generate(self, prompt: str, output_tokens: int) -> AsyncGenerator[Piece]:
        assert self._client is not None
        chunks = self._client.stream(prompt, max_tokens=output_tokens, temperature=0, ignore_eos=True)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield Piece(chunk.text, chunk.num_output_tokens, chunk.num_input_tokens)

    def processes(self) -> list[psutil.Process]:
        return [] if self._server is None else self._server.processes()

    def versions(self) -> Mapping[str, str]:
        return {}

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            await self._server.stop()


def _option(name: str, value: str) -> list[str]:
    """The arguments that give an option of `orthrus serve`, or else a parameter of the model, its value."""
    parameter = signature(serve).parameters.get(name)
    if parameter is None:
        return ["--set", f"{name}={value}"]
    flag = name.replace("_", "-")
    if isinstance(parameter.default, bool):
        return [f"--{flag}" if value.lower() in ("true", "1", "yes") else f"--no-{flag}"]
    return [f"--{flag}={value}"]
