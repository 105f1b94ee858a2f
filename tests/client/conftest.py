"""Fixtures of the client's tests."""

import asyncio
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
import trustme
from orthrus_client import AsyncOrthrusClient, OrthrusClient
from orthrus_client.options import Protocol

from tests.reference import Reference
from tests.serving import RunningServer, running


@pytest.fixture(scope="session")
def server(shallow_server: RunningServer) -> RunningServer:
    """The one that answers soon; that the whole model's answers are right is shown in tests/server."""
    return shallow_server


@pytest.fixture(scope="session")
def reference(shallow_reference: Reference) -> Reference:
    """What `server` must answer."""
    return shallow_reference


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """roots.pem, which signed server.pem and client.pem (with .key each), and others.pem, which signed nothing."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "roots.pem")
    trustme.CA().cert_pem.write_to_path(folder / "others.pem")
    for name, identity in (("server", "127.0.0.1"), ("client", "client@example.org")):
        issued = authority.issue_cert(identity)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return folder


@pytest.fixture(scope="session")
def busy_server(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[RunningServer]:
    """See `tests.client.busy_server`."""
    folder = tmp_path_factory.mktemp("busy")
    command = [sys.executable, "-m", "tests.client.busy_server", str(folder / "models"), str(certificates)]
    with running(command, folder / "stderr.log") as server:
        yield server


@pytest.fixture(scope="session")
def https(busy_server: RunningServer, certificates: Path) -> Iterator[str]:
    """The address of a proxy that encrypts the HTTP of `busy_server` and asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "roots.pem")
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    with _proxy(busy_server.http, context) as address:
        yield address


@pytest.fixture(params=["grpc", "http"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Both, one after the other."""
    return cast(Protocol, request.param)


@pytest.fixture
def client(server: RunningServer, protocol: Protocol) -> Iterator[OrthrusClient]:
    """A client of the session's server."""
    with OrthrusClient(getattr(server, protocol), protocol=protocol) as opened:
        yield opened


@pytest.fixture
async def aclient(server: RunningServer, protocol: Protocol) -> AsyncIterator[AsyncOrthrusClient]:
    """The same for asyncio."""
    async with AsyncOrthrusClient(getattr(server, protocol), protocol=protocol) as opened:
        yield opened


@contextmanager
def _proxy(target: str, context: ssl.SSLContext) -> Iterator[str]:
    host, _, port = target.rpartition(":")

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_target, to_target = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, to_target), copy(from_target, writer))

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(listening.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
