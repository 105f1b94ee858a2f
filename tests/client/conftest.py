"""Fixtures of the client's tests."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what gRPC and the client support."""
    return "asyncio"
