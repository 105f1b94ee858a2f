"""Client of an Orthrus server. Iterative retrieval: `orthrus_client.retrieval` and `orthrus_client.index`.

The names below are imported when they are first asked for: the command line would be slow to say `--help` otherwise.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthrus_client.aio import AsyncOrthrusClient
    from orthrus_client.client import OrthrusClient
    from orthrus_client.errors import Cancelled, DeadlineExceeded, InvalidRequest, OrthrusError, Unavailable
    from orthrus_client.options import EmbedOptions, Message, Sampling
    from orthrus_client.results import Chunk, Embeddings, Generation
    from orthrus_client.security import Tls

_MODULES = {
    "aio": ("AsyncOrthrusClient",),
    "client": ("OrthrusClient",),
    "errors": ("Cancelled", "DeadlineExceeded", "InvalidRequest", "OrthrusError", "Unavailable"),
    "options": ("EmbedOptions", "Message", "Sampling"),
    "results": ("Chunk", "Embeddings", "Generation"),
    "security": ("Tls",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AsyncOrthrusClient",
    "Cancelled",
    "Chunk",
    "DeadlineExceeded",
    "EmbedOptions",
    "Embeddings",
    "Generation",
    "InvalidRequest",
    "Message",
    "OrthrusClient",
    "OrthrusError",
    "Sampling",
    "Tls",
    "Unavailable",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
