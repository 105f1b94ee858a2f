"""Fixtures of the gateway's tests: one gateway for all of them, before the server that all tests share."""

from collections.abc import Iterator

import openai
import pytest
from orthrus_client import OrthrusClient

from tests.gateway.serving import RunningGateway, running_gateway
from tests.reference import Reference
from tests.serving import RunningServer

KEY = "a key, not for you"


@pytest.fixture(scope="session")
def server(shallow_server: RunningServer) -> RunningServer:
    """The one that answers soon; that the whole model's answers are right is shown in tests/server."""
    return shallow_server


@pytest.fixture(scope="session")
def reference(shallow_reference: Reference) -> Reference:
    """What `server` must answer."""
    return shallow_reference


@pytest.fixture(scope="session")
def gateway(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with a key, which takes bodies of 1 MiB."""
    log = tmp_path_factory.mktemp("gateway") / "stderr.log"
    with running_gateway(server.grpc, log, "--max-body=1", f"--metrics-url={server.metrics}", key=KEY) as running:
        yield running


@pytest.fixture(scope="session")
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which tries nothing twice."""
    with openai.OpenAI(base_url=gateway.api, api_key=KEY, max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="session")
def model(client: openai.OpenAI) -> str:
    """The name of the one model that is served."""
    (only,) = client.models.list().data
    return only.id


@pytest.fixture(scope="session")
def direct(server: RunningServer) -> Iterator[OrthrusClient]:
    """The client that asks the server itself: what its answers are, the gateway's must be."""
    with OrthrusClient(server.grpc) as opened:
        yield opened
