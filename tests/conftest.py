"""Fixtures that all tests share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from tests.collector import Collector
from tests.reference import Reference, reference
from tests.serving import RunningServer, orthrus_serve, running
from tests.small_model import save_shallow_model, save_small_model

torch.set_num_threads(1)  # the server under test has another core; threads that spin for work would fight it

SHARED = ("--dtype=float32", "--max-model-len=1024", "--threads=1", "--token-budget=128")  # short steps: it stops soon
__all__ = ["RunningServer", "reference"]  # what `server` is, for annotations; a fixture that is made elsewhere


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what gRPC and the client support."""
    return "asyncio"


@pytest.fixture(scope="session")
async def event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keeps the loop of the first async test for those that follow.

    gRPC learns of the end of a cancelled call a little later. A loop that is closed by then would be an error in
    whichever test runs next.
    """
    yield  # noqa: PT022  # returning would close the loop


@pytest.fixture(autouse=True)
def _one_event_loop(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("anyio"):
        request.getfixturevalue("event_loop")


@pytest.fixture(scope="session")
def adapters_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The list of adapters that `server` follows; empty, and to be left empty."""
    file = tmp_path_factory.mktemp("adapters") / "adapters.txt"
    file.touch()
    return file


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Where the server's spans go."""
    with Collector() as running_collector:
        yield running_collector


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, adapters_file: Path, collector: Collector
) -> Iterator[RunningServer]:
    """A real server with the default model in float32, at most 1024 tokens a request; one for all tests.

    It traces, which changes nothing for a request that comes without a trace context.
    """
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    command = orthrus_serve(*SHARED, f"--adapters-file={adapters_file}", "--traces")
    with running(command, log, variables=collector.variables) as running_server:
        yield running_server


@pytest.fixture(scope="session")
def shallow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model, of which two layers are left."""
    return save_shallow_model(tmp_path_factory.mktemp("shallow"))


@pytest.fixture(scope="session")
def shallow_server(
    shallow_model: Path, tmp_path_factory: pytest.TempPathFactory, adapters_file: Path, collector: Collector
) -> Iterator[RunningServer]:
    """The same as `server` with the shallow model: what it says matters less than that it says it soon."""
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    command = orthrus_serve(*SHARED, f"--model={shallow_model}", f"--adapters-file={adapters_file}", "--traces")
    with running(command, log, variables=collector.variables) as running_server:
        yield running_server


@pytest.fixture(scope="session")
def shallow_reference(shallow_model: Path) -> Reference:
    """The shallow model run by Hugging Face's own code."""
    return Reference(shallow_model)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model, for tests that start a server of their own and ask little of it."""
    return save_small_model(tmp_path_factory.mktemp("small"))


ONE_SERVER = ("tests/client/", "tests/gateway/", "tests/server/")
SERVERS_OF_THEIR_OWN = tuple(
    f"tests/server/test_{name}.py" for name in ("engines", "faults", "reload", "separate", "shutdown")
)
OTHERS_OF_SERVER = tuple(f"tests/test_{name}.py" for name in ("dashboard", "docker", "readme"))
LONGEST = (
    "tests/server/test_reload.py",
    "tests/server/",
    "tests/engine/test_default_model_exact.py",
    *ONE_SERVER,
    "tests/test_gpu_check.py",
    "tests/engine/test_adapters.py",
    "tests/engine/test_scheduler.py",
)


class FoldersAndFiles(LoadScopeScheduling):
    """With several processes, a folder whose tests ask `server` stays in one, and single files that do go with the
    first of them; other files go where there is room.

    So at most as many servers run as there are processes, whose tests wait for them most of the time.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in SERVERS_OF_THEIR_OWN:
            return file
        return ONE_SERVER[0] if file in OTHERS_OF_SERVER else next(filter(file.startswith, ONE_SERVER), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no process is left alone with it at the end."""
    items.sort(
        key=lambda item: next((n for n, path in enumerate(LONGEST) if item.nodeid.startswith(path)), len(LONGEST))
    )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FoldersAndFiles:
    """What `make test` runs with."""
    return FoldersAndFiles(config, log)
