"""The document index, against numpy."""

import subprocess
import sys

import numpy as np
import pytest
from orthrus_client.index import Document, DocumentIndex

DOCUMENTS = [Document(str(number), f"text {number}") for number in range(20)]


def vectors(rows: int = 20) -> np.ndarray:
    """Vectors as an untrained model makes them: a large part that all share, and a small one of their own."""
    random = np.random.default_rng(5)
    return (10 + random.normal(size=(rows, 16)) * random.uniform(0.1, 2, size=16)).astype(np.float32)


def test_search_orders_by_cosine_similarity() -> None:
    stored, query = vectors(), vectors(21)[-1]
    hits = DocumentIndex.build(DOCUMENTS, stored).search(query, 5)
    similarity = stored @ query / (np.linalg.norm(stored, axis=1) * np.linalg.norm(query))
    best = np.argsort(-similarity)[:5]
    assert [hit.document for hit in hits] == [DOCUMENTS[position] for position in best]
    np.testing.assert_allclose([hit.score for hit in hits], similarity[best], atol=1e-6)


def test_whitening_centres_and_equalises_the_principal_components() -> None:
    stored, query = vectors(), vectors(21)[-1]
    hits = DocumentIndex.build(DOCUMENTS, stored, whiten=6).search(query, 5)
    mean = stored.mean(axis=0)
    _, scale, components = np.linalg.svd(stored - mean, full_matrices=False)

    def whitened(rows: np.ndarray) -> np.ndarray:
        white = (rows - mean) @ components[:6].T / scale[:6]
        return white / np.linalg.norm(white, axis=-1, keepdims=True)

    similarity = whitened(stored) @ whitened(query)
    best = np.argsort(-similarity)[:5]
    assert [hit.document for hit in hits] == [DOCUMENTS[position] for position in best]
    np.testing.assert_allclose([hit.score for hit in hits], similarity[best], atol=1e-3)


def test_a_search_for_more_than_there_is_finds_all() -> None:
    index = DocumentIndex.build(DOCUMENTS, vectors())
    assert len(index) == 20
    assert {hit.document for hit in index.search(vectors()[0], 100)} == set(DOCUMENTS)


def test_building_leaves_the_vectors_as_they_were() -> None:
    stored = vectors()
    DocumentIndex.build(DOCUMENTS, stored, whiten=4)
    np.testing.assert_array_equal(stored, vectors())


def test_without_faiss_the_extra_to_install_is_named() -> None:
    code = "import sys; sys.modules['faiss'] = None; import orthrus_client.retrieval"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'orthrus-client[retrieval]'" in done.stderr


@pytest.mark.parametrize(
    ("rows", "whiten", "fault"), [(19, None, "20 documents.*19"), (20, 16, "whiten=16"), (20, 0, "whiten=0")]
)
def test_what_does_not_fit_is_refused(rows: int, whiten: int | None, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        DocumentIndex.build(DOCUMENTS, vectors(rows), whiten=whiten)
