"""Ranks the documents of a retrieval set, by vectors or by words, and says how good the order is."""

from collections.abc import Sequence

import bm25s
import numpy as np
import Stemmer
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from tools.embedding_adapter.mixture import RetrievalSet

DEPTH = 100  # documents of an order that are looked at
MEASURES = ("recall@1", "recall@10", "nDCG@10", "MRR@10")

Order = NDArray[np.int64]  # [queries, DEPTH]: positions of documents, best first


def by_vectors(queries: NDArray[np.float32], documents: NDArray[np.float32]) -> Order:
    """By cosine, of vectors [N, D]. The length of a query changes no order."""
    directions = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    return np.argsort(-(queries @ directions.T), axis=1, kind="stable")[:, :DEPTH]


def by_words(queries: Sequence[str], documents: Sequence[str]) -> Order:
    """By BM25, over stemmed English words."""
    stemmer = Stemmer.Stemmer("english")
    words, asked = (
        bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, show_progress=False)
        for texts in (documents, queries)
    )
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    found, _ = index.retrieve(asked, k=min(DEPTH, len(documents)), show_progress=False)
    return np.asarray(found, dtype=np.int64)


def measures(order: Order, of: RetrievalSet) -> dict[str, float]:
    """Each of `MEASURES`, as Sentence Transformers computes them."""
    judge = InformationRetrievalEvaluator(
        queries={str(q): text for q, text in enumerate(of.queries)},
        corpus={str(d): text for d, text in enumerate(of.documents)},
        relevant_docs={str(q): {str(d) for d in answer} for q, answer in enumerate(of.relevant)},
        precision_recall_at_k=[1, 10],
    )
    ranked: list[object] = [
        [{"corpus_id": str(d), "score": -place} for place, d in enumerate(row)] for row in order.tolist()
    ]
    found = judge.compute_metrics(ranked)
    values = (found["recall@k"][1], found["recall@k"][10], found["ndcg@k"][10], found["mrr@k"][10])
    return dict(zip(MEASURES, map(float, values), strict=True))
