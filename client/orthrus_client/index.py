"""`DocumentIndex`: documents and their vectors, searched by cosine similarity with faiss. Knows nothing of servers.

Hidden states of a language model that was not trained to embed crowd into a narrow cone: all similarities are near 1,
and a few directions that all texts share decide the order. `whiten` corrects that: it centres the vectors and scales
their principal components to equal variance (Su et al. 2021, "Whitening Sentence Representations for Better Semantics
and Faster Retrieval"). A model that was trained to embed does not need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

try:
    import faiss
except ImportError as error:
    raise ImportError("orthrus_client.index needs faiss: pip install 'orthrus-client[retrieval]'") from error


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

    def __init__(self, documents: Sequence[Document], index: faiss.Index) -> None:
        """Takes a trained and filled `index`, in whose order the `documents` are; see `build`."""
        self._documents = tuple(documents)
        self._index = index

    @classmethod
    def build(cls, documents: Sequence[Document], vectors: NDArray[np.float32], *, whiten: int | None = None) -> Self:
        """The index of `documents` with `vectors` [N, D] in the same order.

        Args:
            whiten: keep so many whitened principal components of the vectors; None leaves the vectors as they are.

        Raises:
            ValueError: there are no documents, or not as many as vectors, or too few of either for `whiten`.
        """
        if vectors.ndim != 2 or not documents or len(documents) != len(vectors):
            raise ValueError(f"{len(documents)} documents, but vectors of shape {vectors.shape}")
        if whiten is not None and not 1 <= whiten < min(vectors.shape):  # centring takes one dimension away
            raise ValueError(f"whiten={whiten} is not between 1 and {min(vectors.shape) - 1}")
        steps = "L2norm,Flat" if whiten is None else f"PCAW{whiten},L2norm,Flat"
        index = faiss.index_factory(vectors.shape[1], steps, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        return cls(documents, index)

    @classmethod
    def from_bytes(cls, documents: Sequence[Document], content: bytes) -> Self:
        """The index that `to_bytes` wrote, of `documents`. Raises `ValueError` if it is something else."""
        try:
            index = faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8))
        except RuntimeError:
            raise ValueError("not a faiss index") from None
        if index.ntotal != len(documents):
            raise ValueError(f"{len(documents)} documents, but {index.ntotal} vectors")
        return cls(documents, index)

    def to_bytes(self) -> bytes:
        """The vectors, in faiss's own format, without the documents."""
        return bytes(faiss.serialize_index(self._index))

    def add(self, documents: Sequence[Document], vectors: NDArray[np.float32]) -> None:
        """Adds `documents` with `vectors` [N, D]; a whitening stays as it was when the index was built.

        Raises:
            ValueError: there are not as many documents as vectors, or these have another dimension.
        """
        if vectors.shape != (len(documents), self._index.d):
            raise ValueError(f"{len(documents)} documents for dimension {self._index.d}, but shape {vectors.shape}")
        self._index.add(vectors)
        self._documents += tuple(documents)

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, in the order in which they came."""
        return self._documents

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: NDArray[np.float32], top_k: int) -> tuple[Hit, ...]:
        """The documents nearest to the vector `query` [D], best first; fewer than `top_k` when there are no more."""
        scores, positions = self._index.search(query[np.newaxis], min(top_k, len(self)))
        pairs = zip(scores[0].tolist(), positions[0].tolist(), strict=True)
        return tuple(Hit(self._documents[position], score) for score, position in pairs)
