"""A caller who leaves, in whatever way, leaves no work behind at the server; for embeddings and for generations."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from orthrus_client import AsyncOrthrusClient, DeadlineExceeded, OrthrusClient, Sampling

from tests.server.test_continuations import balanced
from tests.server.test_ends import once_running
from tests.server.test_mixed import metric
from tests.serving import RunningServer

ENDLESS: Sampling = {"max_tokens": 1000, "temperature": 0.0, "ignore_eos": True}


def long_texts() -> list[str]:
    """Some seconds of work; never the same texts, which would not be computed again."""
    return [f"{uuid4()} {'word ' * 950}" for _ in range(24)]


@contextmanager
def cut_short(server: RunningServer, kind: str) -> Iterator[None]:
    """What happens inside is ended early at the server, which is free afterwards."""

    def ended(*outcomes: str) -> float:
        return sum(metric(server, "orthrus_requests_total", kind=kind, outcome=outcome) for outcome in outcomes)

    finished, cut = ended("finished"), ended("cancelled", "timeout")
    yield
    give_up = time.monotonic() + 60
    while ended("cancelled", "timeout") == cut:  # not before, since the metrics are published a moment late
        assert time.monotonic() < give_up
        time.sleep(0.2)
    balanced(server)
    if kind == "generate":
        assert ended("finished") == finished


def call(client: OrthrusClient, kind: str, timeout: float | None = None) -> None:
    if kind == "embed":
        client.embed(long_texts(), timeout=timeout)
    else:
        client.generate("Once", timeout=timeout, **ENDLESS)


@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_ctrl_c(server: RunningServer, client: OrthrusClient, kind: str) -> None:
    def press() -> None:
        once_running(server, kind)
        os.kill(os.getpid(), signal.SIGINT)

    with cut_short(server, kind):
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            call(client, kind)


def test_a_time_out_of_an_embedding(server: RunningServer, client: OrthrusClient) -> None:
    with cut_short(server, "embed"), pytest.raises(DeadlineExceeded, match=r"0\.5 s"):
        client.embed(long_texts(), timeout=0.5)


@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_the_server_keeps_the_time_where_no_stop_reaches_it(
    server: RunningServer, client: OrthrusClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As when the client's process is killed, or its network is gone."""
    monkeypatch.setattr(client._transport, "stop", lambda request_id: None)
    with cut_short(server, kind), pytest.raises(DeadlineExceeded):
        call(client, kind, timeout=0.5)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["generate", "embed"])
async def test_a_cancelled_task(server: RunningServer, aclient: AsyncOrthrusClient, kind: str) -> None:
    with cut_short(server, kind):
        call = aclient.embed(long_texts()) if kind == "embed" else aclient.generate("Once", **ENDLESS)
        task = asyncio.create_task(call)
        await asyncio.to_thread(once_running, server, kind)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.anyio
async def test_a_time_out_of_an_awaited_embedding(server: RunningServer, aclient: AsyncOrthrusClient) -> None:
    with cut_short(server, "embed"):
        with pytest.raises(DeadlineExceeded, match=r"0\.5 s"):
            await aclient.embed(long_texts(), timeout=0.5)
        with pytest.raises(TimeoutError):  # the caller's own, around the call
            async with asyncio.timeout(0.5):
                await aclient.embed(long_texts())
