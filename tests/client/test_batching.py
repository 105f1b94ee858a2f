"""Long lists of texts: several requests of bounded size, a bounded number of them at once, order kept."""

import time

import numpy as np
import pytest
from orthrus_client import AsyncOrthrusClient, InvalidRequest, OrthrusClient, batching
from orthrus_client.batching import split

from tests.client.busy_server import SECRET
from tests.reference import texts
from tests.serving import RunningServer

LENGTHS = list(range(5, 36))
COUNTED = ["x" * length for length in LENGTHS]
HEADERS = {SECRET[0]: SECRET[1]}


def check(rows: np.ndarray, batch_size: int, in_flight: int) -> None:
    """The rows that the busy server makes: length, texts in the request, requests at once."""
    assert rows[:, 0].tolist() == LENGTHS
    assert rows[:, 1].max() == batch_size
    assert 1 < rows[:, 2].max() <= in_flight


@pytest.mark.parametrize(
    ("lengths", "batch_size", "parts"),
    [
        ([1], 4, [1]),
        ([1] * 4, 4, [4]),
        ([1] * 9, 4, [4, 4, 1]),
        ([6, 4, 1], 4, [2, 1]),
        ([3, 30, 3], 4, [1, 1, 1]),
        ([30], 4, [1]),
        ([0, 0], 4, [2]),
    ],
)
def test_parts_are_bounded_in_texts_and_bytes(
    lengths: list[int], batch_size: int, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "BATCH_BYTES", 10)
    listed = [f"{n % 10}" * length for n, length in enumerate(lengths)]
    found = split(listed, batch_size)
    assert [len(part) for part in found] == parts
    assert [text for part in found for text in part] == listed


def test_requests_are_bounded_and_order_is_kept(busy_server: RunningServer) -> None:
    with OrthrusClient(busy_server.http, protocol="http", headers=HEADERS) as opened:
        check(opened.embed(COUNTED, batch_size=3, in_flight=4), 3, 4)
        assert opened.embed(COUNTED, batch_size=8, in_flight=1)[:, 2].max() == 1


@pytest.mark.anyio
async def test_also_by_the_asyncio_client(busy_server: RunningServer) -> None:
    async with AsyncOrthrusClient(busy_server.http, protocol="http", headers=HEADERS) as opened:
        check(await opened.embed(COUNTED, batch_size=3, in_flight=4), 3, 4)
        assert (await opened.embed(COUNTED, batch_size=8, in_flight=1))[:, 2].max() == 1


@pytest.mark.anyio
async def test_the_first_failure_ends_the_call(busy_server: RunningServer) -> None:
    """100 requests of 0.1 s each, one after the other, would take ten seconds."""
    listed = ["wrong", *["a"] * 99]
    started = time.monotonic()
    with (
        OrthrusClient(busy_server.http, protocol="http", headers=HEADERS) as opened,
        pytest.raises(InvalidRequest, match="something wrong"),
    ):
        opened.embed(listed, batch_size=1, in_flight=2)
    async with AsyncOrthrusClient(busy_server.http, protocol="http", headers=HEADERS) as other:
        with pytest.raises(InvalidRequest, match="something wrong"):
            await other.embed(listed, batch_size=1, in_flight=2)
    assert time.monotonic() - started < 5


def test_a_wait_before_a_retry_ends_with_the_call(busy_server: RunningServer) -> None:
    """The part that is turned away would wait for up to four seconds, and again."""
    started = time.monotonic()
    with (
        OrthrusClient(busy_server.http, protocol="http", headers=HEADERS, retries=50) as opened,
        pytest.raises(InvalidRequest, match="something wrong"),
    ):
        opened.embed(["busy 1000 waiting", *["a"] * 12, "wrong"], batch_size=1, in_flight=2)
    assert time.monotonic() - started < 4


def test_parts_make_the_same_vectors(client: OrthrusClient, capsys: pytest.CaptureFixture[str]) -> None:
    whole = client.embed_with_usage(texts(7))
    parts = client.embed_with_usage(texts(7), batch_size=2, in_flight=3)
    np.testing.assert_allclose(parts.vectors, whole.vectors, rtol=0, atol=1e-5)
    assert parts.num_input_tokens.tolist() == whole.num_input_tokens.tolist()
    assert capsys.readouterr().err == ""


@pytest.mark.anyio
async def test_async_parts_make_the_same_vectors(aclient: AsyncOrthrusClient) -> None:
    whole, parts = await aclient.embed(texts(7)), await aclient.embed(texts(7), batch_size=2, in_flight=3)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5)


def test_a_bar_comes_when_it_is_asked_for(busy_server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    with OrthrusClient(busy_server.http, protocol="http", headers=HEADERS) as opened:
        opened.embed(COUNTED, batch_size=4, progress=True)
    assert f"/{len(COUNTED)}" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("in_flight", 0)])
def test_numbers_are_checked(option: str, value: int) -> None:
    with OrthrusClient("127.0.0.1:1") as opened, pytest.raises(ValueError, match=f"{option}.*0"):
        opened.embed(["a", "b"], **{option: value})  # type: ignore[arg-type]  # a name that varies
