"""The application: its endpoints, and what stands before and behind all of them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.types import ASGIApp

from orthrus_client import AsyncOrthrusClient
from orthrus_client.gateway import chat, completions, embeddings, information
from orthrus_client.gateway.auth import ApiKey
from orthrus_client.gateway.catalog import Catalog
from orthrus_client.gateway.context import Gateway
from orthrus_client.gateway.errors import add_error_handlers
from orthrus_client.gateway.health import Health
from orthrus_client.gateway.limits import limit_body

ROUTERS = (embeddings.router, completions.router, chat.router, information.router)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a gateway works. `timeout`: seconds for one request, None for no limit."""

    connect: Callable[[], AsyncOrthrusClient]  # called on the event loop that it belongs to
    timeout: float | None
    model_name: str | None
    api_key: str | None
    max_body_bytes: int


def make_app(settings: Settings) -> ASGIApp:
    """An application that connects when it starts and disconnects when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with settings.connect() as client:
            catalog = Catalog(client, settings.model_name)
            app.state.gateway = Gateway(client, catalog, Health(client), settings.timeout)
            yield

    app = FastAPI(
        title="Orthrus gateway",
        lifespan=lifespan,
        max_body_size=settings.max_body_bytes,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )
    add_error_handlers(app)
    if settings.api_key is not None:
        app.add_middleware(ApiKey, key=settings.api_key)
    for router in ROUTERS:
        app.include_router(router)
    return limit_body(app, settings.max_body_bytes)
