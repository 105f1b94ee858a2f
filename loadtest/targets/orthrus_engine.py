"""Orthrus' engine alone, in this process: what is left when no server, protocol or copy is paid for.

Its processor time and memory are those of this process, so the driver's own are among them.
"""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import psutil

from loadtest.targets.target import BOTH, Piece, Settings, TargetError
from orthrus_backend.assembly import Service, build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.outputs import Embedded, Ended, Output, Produced
from orthrus_backend.params import EmbeddingParams, SamplingParams
from orthrus_backend.request import Request


class OrthrusEngine:
    """`options` are parameters of the model `orthrus`, such as `policy` or `token_budget`."""

    kinds = BOTH

    def __init__(self, settings: Settings, options: Mapping[str, str]) -> None:
        common = {
            "model": str(settings.model),
            "dtype": settings.dtype,
            "max_model_len": str(settings.max_model_len),
            "max_running": str(settings.max_running),
            "kv_memory": str(settings.kv_memory),
        }
        self._settings = EngineSettings.from_parameters(common | dict(options))
        self._service: Service | None = None

    async def start(self) -> None:
        try:
            self._service = await asyncio.to_thread(build_service, self._settings)
        except ValueError as error:
            raise TargetError(str(error)) from error

    async def embed(self, text: str) -> int:
        assert self._service is not None
        request = self._service.intake.embed(text, EmbeddingParams())
        async with aclosing(self._run(request)) as outputs:
            async for output in outputs:
                if isinstance(output, Embedded):
                    return len(request.tokens)
        raise TargetError("an embedding ended without a vector")

    async def generate(self, prompt: str, output_tokens: int) -> AsyncGenerator[Piece]:
        assert self._service is not None
        params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True)
        request = self._service.intake.generate(prompt, params)
        async with aclosing(self._run(request)) as outputs:
            async for output in outputs:
                if isinstance(output, Produced):
                    yield Piece(output.text, 1, request.prompt_length)

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process()]

    def versions(self) -> Mapping[str, str]:
        return {}

    async def stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            await asyncio.to_thread(service.close)
            del service
            gc.collect()  # its parts refer to each other; the next target would be measured with its memory

    async def _run(self, request: Request) -> AsyncGenerator[Output]:
        """All outputs of a request; leaving early cancels it. Raises `TargetError` if it fails."""
        assert self._service is not None
        inbox = _Inbox()
        request.reply, request.arrival = inbox, time.monotonic()
        self._service.engine.submit([request])
        done = False
        try:
            while not done:
                output = await inbox.outputs.get()
                if isinstance(output, str):
                    raise TargetError(output)
                done = output.final
                if isinstance(output, Ended):
                    raise TargetError(f"{output.outcome.value}: {output.message}")
                yield output
        finally:
            if not done:
                self._service.engine.cancel(request)


class _Inbox:
    """A receiver of the engine's that hands everything to the event loop on which it was made."""

    def __init__(self) -> None:
        self.outputs: asyncio.Queue[Output | str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def deliver(self, output: Output) -> None:
        self._loop.call_soon_threadsafe(self.outputs.put_nowait, output)

    def abort(self, message: str) -> None:
        self._loop.call_soon_threadsafe(self.outputs.put_nowait, message)

    def cancelled(self) -> bool:
        return False
