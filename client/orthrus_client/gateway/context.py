"""What every endpoint needs: the client, what is served, and how long an answer may take."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from orthrus_client import AsyncOrthrusClient
from orthrus_client.gateway.catalog import Catalog
from orthrus_client.gateway.health import Health


@dataclass(frozen=True, slots=True)
class Gateway:
    """One for the whole application. `timeout`: seconds for one request, None for no limit."""

    client: AsyncOrthrusClient
    catalog: Catalog
    health: Health
    timeout: float | None


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
