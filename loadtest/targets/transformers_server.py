"""One of the two processes of `transformers-pair`: a small local endpoint around transformers or Sentence Transformers.

It speaks as much of OpenAI's HTTP API as `openai_http` asks. Generations run in transformers' continuous batching;
texts that wait are embedded together. The first line on stdout is the address.
"""

import asyncio
import base64
import json
import queue
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Protocol

import torch
import typer
from aiohttp import web
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from loadtest.records import Kind

PAGE = 16  # tokens; its default of 256 would waste most of the memory on short requests
BATCH_TOKENS = 512  # of one step
BATCH_TEXTS = 32  # embedded together
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """As `target.Settings` has them."""

    max_model_len: int
    max_running: int
    kv_memory: int


class Endpoint(Protocol):
    """One kind of work, at one path."""

    path: str

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""

    def close(self) -> None:
        """End its threads."""


class Completions:
    """Greedy generation, streamed token by token."""

    path = "/v1/completions"

    def __init__(self, model: Path, dtype: torch.dtype, limits: Limits) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa")
        config = loaded.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        page_bytes = 2 * config.num_hidden_layers * heads * width * dtype.itemsize * PAGE
        batching = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=limits.kv_memory // page_bytes,
            max_batch_tokens=BATCH_TOKENS,
            max_requests_per_batch=limits.max_running,
        )
        # No id ends a generation: all are as long as was asked.
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self._manager = loaded.init_continuous_batching(greedy, batching)
        self._manager.start()
        self._next = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = self._tokenizer(body["prompt"])["input_ids"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async with aclosing(self._generate(ids, body["max_tokens"])) as outputs:
            async for text, done in outputs:
                usage = {"prompt_tokens": len(ids), "completion_tokens": done}
                event = {"choices": [{"text": text}], "usage": usage}
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _generate(self, ids: list[int], max_tokens: int) -> AsyncGenerator[tuple[str, int]]:
        """The new text and the number of tokens so far, whenever there are more."""
        name, outputs = f"request-{self._next}", asyncio.Queue[Any]()
        self._next += 1
        self._manager.register_result_handler(name, outputs.put_nowait)
        self._manager.add_request(ids, request_id=name, max_new_tokens=max_tokens, streaming=True)
        text, output = "", None
        try:
            while output is None or not output.is_finished():
                output = await outputs.get()
                if output.error:
                    raise web.HTTPInternalServerError(text=output.error)
                now = self._tokenizer.decode(output.generated_tokens, skip_special_tokens=True)
                yield now[len(text) :], len(output.generated_tokens)
                text = now
        finally:
            if output is None or not output.is_finished():
                self._manager.cancel_request(name)

    def close(self) -> None:
        self._manager.stop(block=True, timeout=STOP_SECONDS)


class Embeddings:
    """Mean-pooled, normalised embeddings; a thread takes all texts that wait, up to a limit."""

    path = "/v1/embeddings"

    def __init__(self, model: Path, dtype: torch.dtype, limits: Limits) -> None:
        from sentence_transformers import SentenceTransformer  # it takes seconds to load, and the other kind needs none

        self._model: Any = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": dtype})
        self._model.max_seq_length = limits.max_model_len
        self._waiting: queue.SimpleQueue[tuple[str, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = (await request.json())["input"]
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.put((text, answer))
        tokens = len(self._model.tokenizer(text)["input_ids"])
        vector = base64.b64encode((await answer).tobytes()).decode()
        return web.json_response({"data": [{"embedding": vector}], "usage": {"prompt_tokens": tokens}})

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, last = [first], False
            while len(batch) < BATCH_TEXTS and not self._waiting.empty():
                entry = self._waiting.get()
                if entry is None:
                    last = True
                    break
                batch.append(entry)
            vectors = self._model.encode(
                [text for text, _ in batch], batch_size=BATCH_TEXTS, normalize_embeddings=True, show_progress_bar=False
            )
            for (_, answer), vector in zip(batch, vectors, strict=True):
                answer.get_loop().call_soon_threadsafe(_give, answer, vector)
            if last:
                return


def _give(answer: "asyncio.Future[Any]", vector: Any) -> None:
    if not answer.done():  # whoever asked may have gone
        answer.set_result(vector)


def main(
    kind: Annotated[Kind, typer.Option()],
    model: Annotated[Path, typer.Option()],
    dtype: Annotated[str, typer.Option()],
    max_model_len: Annotated[int, typer.Option()],
    max_running: Annotated[int, typer.Option()],
    kv_memory: Annotated[int, typer.Option()],
) -> None:
    """Serve one kind on a free port of 127.0.0.1 until SIGTERM."""
    endpoint = (Embeddings if kind is Kind.EMBED else Completions)(
        model, getattr(torch, dtype), Limits(max_model_len, max_running, kv_memory)
    )
    app = web.Application()
    app.router.add_post(endpoint.path, endpoint.handle)
    try:
        asyncio.run(_serve(app))
    finally:
        endpoint.close()


async def _serve(app: web.Application) -> None:
    runner = web.AppRunner(app, handler_cancellation=True)  # a client that goes ends its generation
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    typer.echo(f"http://127.0.0.1:{runner.addresses[0][1]}")
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
