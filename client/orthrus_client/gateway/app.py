"""The application: its endpoints, and what stands before and behind all of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from httpx2 import AsyncClient
from starlette.types import ASGIApp

from orthrus_client import AsyncOrthrusClient
from orthrus_client.gateway import chat, completions, embeddings, information
from orthrus_client.gateway.auth import ApiKey
from orthrus_client.gateway.catalog import Catalog
from orthrus_client.gateway.context import Gateway
from orthrus_client.gateway.demo import endpoints as demo
from orthrus_client.gateway.demo.corpora import Corpora
from orthrus_client.gateway.demo.site import add_site
from orthrus_client.gateway.demo.state import Demo
from orthrus_client.gateway.errors import add_error_handlers
from orthrus_client.gateway.health import Health
from orthrus_client.gateway.limits import limit_body
from orthrus_client.gateway.load import Load
from orthrus_client.gateway.request_ids import RequestIds
from orthrus_client.sample_corpus import sample_corpus

ROUTERS = (embeddings.router, completions.router, chat.router, information.router, demo.router)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a gateway works. `timeout`: seconds for one request, None for no limit."""

    connect: Callable[[], AsyncOrthrusClient]  # called on the event loop that it belongs to
    timeout: float | None
    model_name: str | None
    api_key: str | None
    max_body_bytes: int
    metrics: str  # host:port


def make_app(settings: Settings, closing: asyncio.Event) -> ASGIApp:
    """An application that connects when it starts and disconnects when it ends.

    Args:
        closing: is to be set before the application ends; what would stream for ever stops then.
    """
    sample = sample_corpus()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with settings.connect() as client, AsyncClient(trust_env=False) as http:
            load = Load(settings.metrics, http)
            catalog = Catalog(client, settings.model_name, load)
            app.state.gateway = Gateway(client, catalog, Health(client), settings.timeout)
            app.state.demo = Demo(sample, Corpora(sample), load, closing)
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
    add_site(app)
    return RequestIds(limit_body(app, settings.max_body_bytes))
