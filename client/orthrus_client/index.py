"""`DocumentIndex`: documents and their vectors, searched by cosine similarity with faiss. Knows nothing of servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import faiss
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of text that an answer may draw on."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found."""

    document: Document
    score: float  # cosine similarity to the query


class DocumentIndex:
    """An exact index: inner products of vectors of length one."""

    def __init__(self, documents: Sequence[Document], index: faiss.IndexFlatIP) -> None:
        self._documents = tuple(documents)
        self._index = index

    @classmethod
    def build(cls, documents: Sequence[Document], vectors: NDArray[np.float32]) -> Self:
        """The index of `documents` with `vectors` [N, D] in the same order; vectors of any length but zero.

        Raises:
            ValueError: the numbers of documents and of vectors differ, or there are none.
        """
        if vectors.ndim != 2 or not documents or len(documents) != len(vectors):
            raise ValueError(f"{len(documents)} documents, but vectors of shape {vectors.shape}")
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(_normalised(vectors))
        return cls(documents, index)

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: NDArray[np.float32], top_k: int) -> tuple[Hit, ...]:
        """The documents nearest to the vector `query` [D], best first; fewer than `top_k` when there are no more."""
        scores, positions = self._index.search(_normalised(query[np.newaxis]), min(top_k, len(self)))
        pairs = zip(scores[0].tolist(), positions[0].tolist(), strict=True)
        return tuple(Hit(self._documents[position], score) for score, position in pairs)


def _normalised(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    copied = np.array(vectors, dtype=np.float32, order="C")
    faiss.normalize_L2(copied)
    return copied
