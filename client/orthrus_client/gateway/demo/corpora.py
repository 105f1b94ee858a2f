"""What questions are asked over: documents, and the index that they become when somebody first asks."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from orthrus_client import AsyncOrthrusClient
from orthrus_client.gateway.errors import ApiError
from orthrus_client.index import Document, DocumentIndex
from orthrus_client.sample_corpus import SampleCorpus

SAMPLE = "sample"
KEPT_UPLOADS = 16  # the one that was not asked for the longest makes room
BATCH = 8  # documents embedded from one sign of progress to the next
WHITENED = 24  # components kept, see `orthrus_client.index`
FEWEST_TO_WHITEN = 10


class Indexing:
    """The index of some documents in the making. All who wait for it do a share of the work, each batch once."""

    def __init__(self, documents: Sequence[Document], server: Mapping[str, str]) -> None:
        self.server = server  # its parameters; with others its vectors are others
        self._documents = documents
        self._lock = asyncio.Lock()
        self._vectors: list[NDArray[np.float32]] = []
        self._done = 0
        self._index: DocumentIndex | None = None

    @property
    def index(self) -> DocumentIndex:
        """The index, after `run`."""
        assert self._index is not None
        return self._index

    async def run(self, client: AsyncOrthrusClient, timeout: float | None) -> AsyncGenerator[int]:
        """Embeds what is not embedded yet; yields how many documents are, to the last. What fails can be run again."""
        while self._index is None:
            yield self._done
            async with self._lock:
                if self._index is None:
                    await self._embed_next(client, timeout)
        yield self._done

    async def _embed_next(self, client: AsyncOrthrusClient, timeout: float | None) -> None:
        part = self._documents[self._done : self._done + BATCH]
        if part:
            self._vectors.append(await client.embed([document.text for document in part], timeout=timeout))
            self._done += len(part)
        if self._done == len(self._documents):
            self._index = await asyncio.to_thread(self._build)

    def _build(self) -> DocumentIndex:
        vectors = np.concatenate(self._vectors)
        count, dimensions = vectors.shape
        as_they_are = trained_to_embed(self.server) or count < FEWEST_TO_WHITEN
        whiten = None if as_they_are else min(WHITENED, count * 4 // 5, dimensions - 1)
        return DocumentIndex.build(self._documents, vectors, whiten=whiten)


def trained_to_embed(server: Mapping[str, str]) -> bool:
    """Whether what embeds was trained to: a model of its own or an adapter, which the default model comes with."""
    adapter = server.get("embedding_adapter") or ("none" if server.get("model") else "its own")
    return bool(server.get("embedding_model")) or adapter != "none"


class Corpus:
    """Documents under the name that people know them by."""

    def __init__(self, name: str, documents: Sequence[Document]) -> None:
        self.name = name
        self.documents = documents
        self._indexing: Indexing | None = None

    def indexing(self, server: Mapping[str, str]) -> Indexing:
        """The index as the server with these parameters makes it: it may have been started anew with another model."""
        if self._indexing is None or self._indexing.server != server:
            self._indexing = Indexing(self.documents, server)
        return self._indexing


class Corpora:
    """The sample, and what was uploaded most recently, in memory only."""

    def __init__(self, sample: SampleCorpus) -> None:
        self._sample = Corpus(sample.company, sample.documents)
        self._uploads: OrderedDict[str, Corpus] = OrderedDict()

    def add(self, corpus: Corpus) -> str:
        """Keep an upload; returns the id by which only who uploaded it can ask for it."""
        key = secrets.token_urlsafe(16)
        self._uploads[key] = corpus
        if len(self._uploads) > KEPT_UPLOADS:
            self._uploads.popitem(last=False)
        return key

    def get(self, key: str) -> Corpus:
        """The sample or an upload. Raises `ApiError` for what is not kept, or not any more."""
        if key == SAMPLE:
            return self._sample
        if key not in self._uploads:
            message = f"this text is not kept any more: only the latest {KEPT_UPLOADS} are. Choose the file again"
            raise ApiError(404, message, param="corpus", code="corpus_not_found")
        self._uploads.move_to_end(key)
        return self._uploads[key]
