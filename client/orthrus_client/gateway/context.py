"""What every endpoint needs: the client, what is served, and how long an answer may take."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request

from orthrus_client import AsyncOrthrusClient
from orthrus_client.gateway.catalog import Catalog
from orthrus_client.gateway.health import Health
from orthrus_client.gateway.request_ids import request_id_of

_TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile("[ -~]{1,512}")


@dataclass(frozen=True, slots=True)
class Gateway:
    """One for the whole application, but for the client, which speaks for one request.

    `timeout`: seconds for one request, None for no limit.
    """

    client: AsyncOrthrusClient
    catalog: Catalog
    health: Health
    timeout: float | None


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    client = gateway.client.with_request_id(request_id_of(request)).with_headers(_trace_context(request.headers))
    return replace(gateway, client=client)


def _trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """Whose trace a request belongs to. As W3C wants it, what is not in its form does not count, and is no error."""
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    return {"traceparent": parent} | ({"tracestate": state} if _TRACESTATE.fullmatch(state) else {})


GatewayDep = Annotated[Gateway, Depends(_gateway)]
