"""/v1/models and /health: what is served, and whether it works."""

from typing import Literal

from fastapi import APIRouter
from openai.types import Model
from typing_extensions import TypedDict

from orthrus_client.errors import OrthrusError, Unavailable
from orthrus_client.gateway.catalog import unknown_model
from orthrus_client.gateway.context import GatewayDep
from orthrus_client.gateway.errors import api_error

router = APIRouter()


class ModelList(TypedDict):
    """OpenAI's list of models, for which the `openai` package has no type but that of its own pages."""

    object: Literal["list"]
    data: list[Model]


@router.get("/v1/models")
async def list_models(gateway: GatewayDep) -> ModelList:
    """All models, each adapter as one of its own."""
    names = await gateway.catalog.names()
    return {"object": "list", "data": [_model(name, gateway.catalog.created) for name in names]}


@router.get("/v1/models/{name:path}")
async def retrieve_model(name: str, gateway: GatewayDep) -> Model:
    """One of them."""
    names = await gateway.catalog.names()
    if name not in names:
        raise unknown_model(name, names)
    return _model(name, gateway.catalog.created)


@router.get("/health")
async def health(gateway: GatewayDep) -> dict[str, str]:
    """Whether a request that comes now would be answered; 503 if not."""
    try:
        await gateway.health.check()
    except OrthrusError as error:
        raise Unavailable(f"the engine does not answer: {api_error(error).message}") from error
    return {"status": "ok"}


def _model(name: str, created: int) -> Model:
    return Model(id=name, created=created, object="model", owned_by="orthrus")
