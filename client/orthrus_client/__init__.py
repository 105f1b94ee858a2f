"""Client of an Orthrus server. Iterative retrieval: `orthrus_client.retrieval` and `orthrus_client.index`."""

from orthrus_client.aio import AsyncOrthrusClient
from orthrus_client.client import OrthrusClient
from orthrus_client.errors import Cancelled, DeadlineExceeded, InvalidRequest, OrthrusError, Unavailable
from orthrus_client.options import EmbedOptions, Message, Sampling
from orthrus_client.results import Chunk, Embeddings, Generation

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
    "Unavailable",
]
