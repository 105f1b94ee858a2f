"""Fixtures that all tests share."""

from collections.abc import Iterator

import pytest

from tests.serving import Server, orthrus_serve, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server with the default model in float32; one for all tests."""
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    with running(orthrus_serve("--dtype=float32"), log) as running_server:
        yield running_server
