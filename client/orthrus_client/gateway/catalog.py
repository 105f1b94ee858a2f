"""The names of what is served: `name` for a model itself, `name:adapter` for it with a LoRA adapter.

They come from the backend's own configuration, which Triton tells and which is asked for anew every few seconds.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from orthrus_client import AsyncOrthrusClient
from orthrus_client.errors import OrthrusError, Unavailable
from orthrus_client.gateway.errors import ApiError

KEEP_SECONDS = 5.0
UNNAMED = "orthrus"  # where the configuration leaves the choice of the model to the backend


@dataclass(frozen=True, slots=True)
class Served:
    """The names that requests may use, and the adapter (None: no adapter) that each stands for."""

    generators: Mapping[str, str | None]
    embedders: Mapping[str, str | None]

    @classmethod
    def read(cls, parameters: Mapping[str, str], model_name: str | None) -> "Served":
        """From the backend's parameters; `model_name`, if given, stands in for the name of the (first) model."""
        name = model_name or short_name(parameters.get("model", ""))
        pairs = [pair for pair in parameters.get("adapters", "").split(",") if pair.strip()]
        adapters = [pair.partition("=")[0].strip() for pair in pairs]
        generators = {name: None} | {f"{name}:{adapter}": adapter for adapter in adapters}
        embedder = parameters.get("embedding_model", "")
        return cls(generators, {short_name(embedder): None} if embedder else generators)

    def names(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys([*self.generators, *self.embedders]))


def short_name(model: str) -> str:
    """A folder's or file's own name; a hub id as it is."""
    path = PurePath(model)
    if path.suffix == ".gguf":
        return path.stem
    return path.name if path.is_absolute() else model or UNNAMED


class Catalog:
    """What the server serves now."""

    def __init__(self, client: AsyncOrthrusClient, model_name: str | None) -> None:
        self.created = int(time.time())  # Triton does not say when a model was loaded
        self._client = client
        self._model_name = model_name
        self._served: Served | None = None
        self._read_at = 0.0

    async def served(self) -> Served:
        """All names. Raises `Unavailable` while the server cannot tell."""
        if self._served is None or time.monotonic() > self._read_at + KEEP_SECONDS:
            try:
                parameters = await self._client.parameters()
            except OrthrusError as error:
                raise Unavailable(f"the server cannot say what it serves: {error}") from error
            self._served, self._read_at = Served.read(parameters, self._model_name), time.monotonic()
        return self._served

    async def generator(self, name: str) -> str | None:
        """The adapter behind the name of what generates. Raises `ApiError` for any other name."""
        return _find(name, (await self.served()).generators)

    async def embedder(self, name: str) -> str | None:
        """The adapter behind the name of what embeds. Raises `ApiError` for any other name."""
        return _find(name, (await self.served()).embedders)


def unknown_model(name: str, known: Iterable[str]) -> ApiError:
    """The error of a name that is not served, or not for this."""
    message = f"the model {name!r} is not served here; for this there is {', '.join(known)}"
    return ApiError(404, message, param="model", code="model_not_found")


def _find(name: str, names: Mapping[str, str | None]) -> str | None:
    if name not in names:
        raise unknown_model(name, names)
    return names[name]
