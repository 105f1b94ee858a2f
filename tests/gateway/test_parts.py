"""Parts of the gateway that need no server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest
from orthrus_client import Cancelled, DeadlineExceeded, InvalidRequest, OrthrusError, Unavailable
from orthrus_client.gateway.catalog import Served, short_name
from orthrus_client.gateway.concurrency import all_of, merged
from orthrus_client.gateway.errors import api_error
from orthrus_client.gateway.usage import finish_reason


class TestNames:
    @pytest.mark.parametrize(
        ("model", "name"),
        [
            ("", "orthrus"),
            ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
            ("/models/Qwen3-0.6B", "Qwen3-0.6B"),
            ("/models/tiny.gguf", "tiny"),
            ("owner/repository/tiny.Q8_0.gguf", "tiny.Q8_0"),
        ],
    )
    def test_a_short_name_says_what_is_served(self, model: str, name: str) -> None:
        assert short_name(model) == name

    def test_an_adapter_is_a_model_of_its_own_for_both(self) -> None:
        served = Served.read({"model": "/m/base", "adapters": "a=/x, b=/y=z"}, None)
        assert served.names() == ["base", "base:a", "base:b"]
        assert served.generator == served.embedder == "base"
        assert served.names(later=["b", "c"]) == ["base", "base:a", "base:b", "base:c"]

    def test_a_model_for_embeddings_does_not_generate_and_has_no_adapters(self) -> None:
        served = Served.read({"model": "/m/base", "adapters": "a=/x", "embedding_model": "o/minilm"}, "mine")
        assert served.names() == ["mine", "mine:a", "o/minilm"]
        assert (served.generator, served.embedder) == ("mine", "o/minilm")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("no"), 400, None),
        (Unavailable("unavailable: 64 requests wait"), 503, "unavailable"),
        (Cancelled("the server stops"), 503, "unavailable"),
        (DeadlineExceeded("late"), 504, "timeout"),
        (OrthrusError("internal error: secret"), 500, "internal_error"),
        (KeyError("secret"), 500, "internal_error"),
    ],
)
def test_every_error_has_its_status(error: Exception, status: int, code: str | None) -> None:
    told = api_error(error)
    assert (told.status, told.code) == (status, code)
    assert "secret" not in told.message
    assert told.body()["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")


def test_the_servers_own_places_are_left_out_and_the_parameter_is_named() -> None:
    told = api_error(InvalidRequest("in ensemble 'generate', sampling_parameters: top_p: must be at most 1"))
    assert (told.message, told.param) == ("top_p: must be at most 1", "top_p")
    assert api_error(Unavailable("in ensemble 'embed', unavailable: full")).message == "unavailable: full"


def test_an_answer_that_came_to_no_end_is_an_error() -> None:
    assert [finish_reason("stop"), finish_reason("length")] == ["stop", "length"]
    for reason, error in (("timeout", DeadlineExceeded), ("cancelled", Unavailable), (None, OrthrusError)):
        with pytest.raises(error):
            finish_reason(reason)


class Streams:
    """Streams that note how they ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def numbers(self, name: str, count: int, fault: Exception | None = None) -> AsyncGenerator[int]:
        try:
            for number in range(count):
                await asyncio.sleep(0)
                yield number
            if fault:
                raise fault
            self.ended.append(f"{name} complete")
        finally:
            self.ended.append(name)


class TestConcurrency:
    def test_streams_are_merged_each_in_its_order(self) -> None:
        async def run() -> list[tuple[int, int]]:
            streams = Streams()
            return [item async for item in merged([streams.numbers("a", 300), streams.numbers("b", 200)])]

        items = asyncio.run(run())
        assert [number for position, number in items if position == 0] == list(range(300))
        assert [number for position, number in items if position == 1] == list(range(200))

    def test_a_failure_or_a_reader_that_goes_ends_all_streams(self) -> None:
        async def run() -> None:
            streams = Streams()
            with pytest.raises(Unavailable):
                async for _ in merged([streams.numbers("a", 10**6), streams.numbers("b", 2, Unavailable("full"))]):
                    pass
            assert sorted(streams.ended) == ["a", "b"]
            streams = Streams()
            chunks = merged([streams.numbers("a", 10**6), streams.numbers("b", 10**6)])
            await anext(chunks)
            await chunks.aclose()
            assert sorted(streams.ended) == ["a", "b"]

        asyncio.run(run())

    def test_a_reader_that_is_cancelled_cuts_off_no_streams_end(self) -> None:
        """As starlette cancels an answer whose client has gone: again and again, until the task ends."""

        async def numbers(ended: list[int]) -> AsyncGenerator[int]:
            try:
                for number in range(10**6):
                    await asyncio.sleep(0.001)
                    yield number
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(0.05)  # telling the server
                ended.append(1)

        async def run() -> list[int]:
            ended: list[int] = []
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    async with aclosing(merged([numbers(ended), numbers(ended)])) as items:
                        async for _ in items:
                            pass

                group.start_soon(read)
                await asyncio.sleep(0.02)
                group.cancel_scope.cancel()
            return ended

        assert asyncio.run(run()) == [1, 1]

    def test_the_first_failure_of_many_calls_is_raised_as_it_is(self) -> None:
        async def fail() -> int:
            raise Unavailable("full")

        async def wait(ended: list[str]) -> int:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("cancelled")
            return 1

        ended: list[str] = []
        with pytest.raises(Unavailable, match="full"):
            asyncio.run(_run(wait(ended), fail()))
        assert ended == ["cancelled"]


async def _run(*calls: object) -> list[int]:
    return await all_of(list(calls))  # type: ignore[arg-type]  # coroutines
