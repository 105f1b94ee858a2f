"""Retries, TLS and headers, against a real tritonserver that is busy, encrypted and restricted."""

import itertools
import time
from pathlib import Path

import pytest
from orthrus_client import AsyncOrthrusClient, InvalidRequest, OrthrusClient, OrthrusError, Tls, Unavailable
from orthrus_client.options import Protocol

from tests.client.busy_server import GRPC_PREFIX, SECRET
from tests.serving import RunningServer

HEADERS = {"grpc": {GRPC_PREFIX + SECRET[0]: SECRET[1]}, "http": {SECRET[0]: SECRET[1]}}
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
_keys = itertools.count()


def text(kind: str, times: int) -> str:
    """A text that finds the server in trouble so many times; see `tests.client.busy_server`."""
    return f"{kind} {times} key{next(_keys)}"


@pytest.fixture
def tls(certificates: Path) -> Tls:
    return Tls(certificates / "roots.pem", certificates / "client.pem", certificates / "client.key")


@pytest.fixture
def addresses(busy_server: RunningServer, https: str) -> dict[str, str]:
    """Of the encrypted ports."""
    return {"grpc": busy_server.grpc, "http": https}


def connect(addresses: dict[str, str], protocol: Protocol, tls: Tls | None, retries: int = 3) -> OrthrusClient:
    return OrthrusClient(addresses[protocol], protocol=protocol, tls=tls, headers=HEADERS[protocol], retries=retries)


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestRetries:
    def test_what_finds_the_server_busy_is_asked_again(
        self, addresses: dict[str, str], protocol: Protocol, tls: Tls
    ) -> None:
        with connect(addresses, protocol, tls) as client:
            assert client.generate(text("busy", 2)).text == "asked 3 times"
            assert [chunk.text for chunk in client.stream(text("busy", 2))] == ["asked 3 times"]
            assert client.embed([text("busy", 2), "a"]).shape == (2, 3)

    @pytest.mark.anyio
    async def test_also_by_the_asyncio_client(self, addresses: dict[str, str], protocol: Protocol, tls: Tls) -> None:
        headers = HEADERS[protocol]
        async with AsyncOrthrusClient(addresses[protocol], protocol=protocol, tls=tls, headers=headers) as client:
            assert (await client.generate(text("busy", 2))).text == "asked 3 times"
            assert [chunk.text async for chunk in client.stream(text("busy", 2))] == ["asked 3 times"]
            assert (await client.embed([text("busy", 2), "a"])).shape == (2, 3)
            broken = text("broken", 1)
            with pytest.raises(Unavailable):
                [chunk async for chunk in client.stream(broken)]
            assert (await client.generate(broken)).text == "asked 2 times"
            for _ in range(50):  # gRPC's asyncio often loses the reason where a stream is refused at once
                with pytest.raises(OrthrusError) as refused:
                    await anext(client.with_headers(dict.fromkeys(headers, "guess")).stream(broken))
                if isinstance(refused.value, InvalidRequest):
                    break
            assert isinstance(refused.value, InvalidRequest)
            assert "restricted" in str(refused.value)

    def test_a_stream_that_delivered_something_is_not_begun_anew(
        self, addresses: dict[str, str], protocol: Protocol, tls: Tls
    ) -> None:
        broken = text("broken", 1)
        with connect(addresses, protocol, tls) as client:
            chunks = client.stream(broken)
            assert next(chunks).text == "half"
            with pytest.raises(Unavailable, match="too much to do"):
                next(chunks)
            assert client.generate(broken).text == "asked 2 times"

    def test_there_is_an_end(self, addresses: dict[str, str], protocol: Protocol, tls: Tls) -> None:
        often, never = text("busy", 3), text("busy", 1)
        with connect(addresses, protocol, tls, retries=2) as client:
            with pytest.raises(Unavailable, match="too much to do"):
                client.generate(often)
            assert client.generate(often).text == "asked 4 times"
        with connect(addresses, protocol, tls, retries=0) as client:
            with pytest.raises(Unavailable, match="too much to do"):
                client.generate(never)
            assert client.generate(never).text == "asked 2 times"

    def test_waits_stay_within_the_callers_time(self, addresses: dict[str, str], protocol: Protocol, tls: Tls) -> None:
        started = time.monotonic()
        with connect(addresses, protocol, tls, retries=1000) as client, pytest.raises(Unavailable):
            client.generate(text("busy", 1000), timeout=1.0)
        assert time.monotonic() - started < 3

    def test_a_refusal_is_not_asked_again(self, addresses: dict[str, str], protocol: Protocol, tls: Tls) -> None:
        wrong = text("wrong", 1)
        with connect(addresses, protocol, tls) as client:
            with pytest.raises(InvalidRequest, match="something wrong"):
                client.generate(wrong)
            assert client.generate(wrong).text == "asked 2 times"


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestTls:
    def test_a_server_of_another_authority_is_not_trusted(
        self, addresses: dict[str, str], protocol: Protocol, certificates: Path
    ) -> None:
        other = Tls(certificates / "others.pem", certificates / "client.pem", certificates / "client.key")
        with (
            connect(addresses, protocol, other, retries=0) as client,
            pytest.raises(Unavailable, match=r"(?i)certificate.verify.failed"),
        ):
            client.embed("a")

    def test_who_shows_no_certificate_is_turned_away(
        self, addresses: dict[str, str], protocol: Protocol, certificates: Path
    ) -> None:
        with (
            connect(addresses, protocol, Tls(certificates / "roots.pem"), retries=0) as client,
            pytest.raises(Unavailable),
        ):
            client.embed("a")

    def test_a_plain_connection_is_turned_away(self, addresses: dict[str, str], protocol: Protocol) -> None:
        with connect(addresses, protocol, None, retries=0) as client, pytest.raises(Unavailable):
            client.embed("a")


def test_a_certificate_and_its_key_go_together(certificates: Path) -> None:
    for kind in (OrthrusClient, AsyncOrthrusClient):
        for protocol in PROTOCOLS:
            with pytest.raises(ValueError, match="client_certificate and client_key go together"):
                kind("127.0.0.1:1", protocol=protocol, tls=Tls(client_key=certificates / "client.key"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_that_is_no_certificate_is_named(certificates: Path, protocol: Protocol) -> None:
    with pytest.raises(ValueError, match=r"root certificates '.*client\.key'"):
        OrthrusClient("127.0.0.1:1", protocol=protocol, tls=Tls(certificates / "client.key"))
    with pytest.raises(ValueError, match=r"root certificates '/nowhere': No such file"):
        OrthrusClient("127.0.0.1:1", protocol=protocol, tls=Tls("/nowhere"))
    others_key = Tls(None, certificates / "client.pem", certificates / "server.key")
    with pytest.raises(ValueError, match=r"client certificate '.*client\.pem' with key '.*server\.key'"):
        OrthrusClient("127.0.0.1:1", protocol=protocol, tls=others_key)


def test_an_address_without_tls_and_tls_is_a_contradiction(certificates: Path) -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:1.*https://"):
        OrthrusClient("http://127.0.0.1:1", protocol="http", tls=Tls())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_headers_go_with_every_request(addresses: dict[str, str], protocol: Protocol, tls: Tls) -> None:
    with OrthrusClient(addresses[protocol], protocol=protocol, tls=tls) as client:
        for call in (client.generate, client.embed, lambda text: list(client.stream(text))):
            with pytest.raises(InvalidRequest, match="restricted"):
                call(text("busy", 0))
        known = client.with_headers({name.upper(): value for name, value in HEADERS[protocol].items()})
        for call in (known.generate, known.embed, lambda text: list(known.stream(text))):
            call(text("busy", 0))
        with pytest.raises(InvalidRequest, match="restricted"):
            client.embed(text("busy", 0))


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ({"triton_grpc_error": "true"}, "triton_grpc_error"),
        ({"Triton_GRPC_Error": "true"}, "triton_grpc_error"),
        ({"a b": "c"}, "'a b'"),
        ({"a-bin": "c"}, "a-bin"),
        ({"a": "b\r\nc: d"}, "'a'"),
        ({"a": "é"}, "'a'"),
    ],
)
@pytest.mark.anyio  # gRPC's asyncio channels need a loop
async def test_a_header_that_cannot_be_sent_is_refused(headers: dict[str, str], fault: str) -> None:
    for kind in (OrthrusClient, AsyncOrthrusClient):
        with pytest.raises(ValueError, match=fault):
            kind("127.0.0.1:1", headers=headers)
        client = kind("127.0.0.1:1")
        with pytest.raises(ValueError, match=fault):
            client.with_headers(headers)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_port_of_the_other_protocol_is_said_to_be_one(server: RunningServer, protocol: Protocol) -> None:
    with OrthrusClient(server.http if protocol == "grpc" else server.grpc, protocol=protocol, retries=0) as client:
        for call in (client.generate, client.embed):
            with pytest.raises(Unavailable, match="speaks another protocol: Triton's gRPC is on port 8001"):
                call("a")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_where_nothing_listens_the_server_is_asked_for(protocol: Protocol) -> None:
    with OrthrusClient("127.0.0.1:1", protocol=protocol, retries=0) as client:
        for call in (client.generate, client.embed):
            with pytest.raises(Unavailable, match=r"nothing listens there: .*orthrus serve"):
                call("a")


def test_words_of_the_caller_are_not_taken_for_another_protocol(server: RunningServer) -> None:
    with OrthrusClient(server.grpc) as client, pytest.raises(InvalidRequest, match=r"'http1.x server'; loaded: [^;]*$"):
        client.embed("a", adapter="http1.x server")


def test_a_number_of_retries_is_checked() -> None:
    for kind in (OrthrusClient, AsyncOrthrusClient):
        with pytest.raises(ValueError, match=r"retries.*-1"):
            kind("127.0.0.1:1", retries=-1)
