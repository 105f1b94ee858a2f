"""The names of what is served: `name` for a model itself, `name:adapter` for it with a LoRA adapter.

They come from the backend's own configuration, which Triton tells and which is asked for anew every few seconds.
Adapters that the server was given later are no part of that: their names are among its metrics, if these can be read.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from orthrus_client import AsyncOrthrusClient
from orthrus_client.errors import OrthrusError, Unavailable
from orthrus_client.gateway.errors import ApiError
from orthrus_client.gateway.load import Load

KEEP_SECONDS = 5.0
UNNAMED = "orthrus"  # where the configuration leaves the choice of the model to the backend


@dataclass(frozen=True, slots=True)
class Served:
    """The name of what generates, of what embeds, and the adapters that are known of the first."""

    generator: str
    embedder: str
    adapters: tuple[str, ...]

    @classmethod
    def read(cls, parameters: Mapping[str, str], model_name: str | None) -> "Served":
        """From the backend's parameters; `model_name`, if given, stands in for the name of the (first) model."""
        name = model_name or short_name(parameters.get("model", ""))
        pairs = [pair for pair in parameters.get("adapters", "").split(",") if pair.strip()]
        adapters = [pair.partition("=")[0].strip() for pair in pairs]
        embedder = parameters.get("embedding_model", "")
        return cls(name, short_name(embedder) if embedder else name, tuple(adapters))

    def names(self, later: Iterable[str] = ()) -> list[str]:
        """All names, each once; `later` are adapters that came after the start."""
        with_adapters = [f"{self.generator}:{adapter}" for adapter in (*self.adapters, *later)]
        return list(dict.fromkeys([self.generator, *with_adapters, self.embedder]))


def short_name(model: str) -> str:
    """A folder's or file's own name; a hub id as it is."""
    path = PurePath(model)
    if path.suffix == ".gguf":
        return path.stem
    return path.name if path.is_absolute() else model or UNNAMED


class Catalog:
    """What the server serves now."""

    def __init__(self, client: AsyncOrthrusClient, model_name: str | None, load: Load) -> None:
        self.created = int(time.time())  # Triton does not say when a model was loaded
        self._client = client
        self._model_name = model_name
        self._load = load
        self._served: Served | None = None
        self._read_at = 0.0

    async def names(self) -> list[str]:
        """All names, as far as they are known. Raises `Unavailable` as `served` does."""
        served, counts = await self.served(), (await self._load.read()).counts
        return served.names(sorted(counts.adapters) if counts else ())

    async def served(self) -> Served:
        """What the server was started with. Raises `Unavailable` while the server cannot tell."""
        if self._served is None or time.monotonic() > self._read_at + KEEP_SECONDS:
            try:
                parameters = await self._client.parameters()
            except OrthrusError as error:
                raise Unavailable(f"the server cannot say what it serves: {error}") from error
            self._served, self._read_at = Served.read(parameters, self._model_name), time.monotonic()
        return self._served

    async def generator(self, name: str) -> str | None:
        """The adapter (None: none) that a name of what generates stands for. Raises `ApiError` for any other name."""
        served = await self.served()
        return _adapter(name, served.generator, served.names())

    async def embedder(self, name: str) -> str | None:
        """The same of what embeds."""
        served = await self.served()
        return _adapter(name, served.embedder, served.names())


def unknown_model(name: str, known: Iterable[str]) -> ApiError:
    """The error of a name that is not served, or not for this."""
    message = f"the model {name!r} is not served here, or not for this; there is {', '.join(known)}"
    return ApiError(404, message, param="model", code="model_not_found")


def _adapter(name: str, model: str, known: Iterable[str]) -> str | None:
    """The server itself judges an adapter: it may have come since, and `api_error` knows what it says of others."""
    if name == model:
        return None
    if not name.removeprefix(f"{model}:") or not name.startswith(f"{model}:"):
        raise unknown_model(name, known)
    return name.removeprefix(f"{model}:")
