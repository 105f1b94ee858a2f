"""The default model in float32: token for token and vector for vector what Hugging Face computes, alone or mixed."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from orthrus_client.sample_corpus import sample_corpus

from orthrus_backend.assembly import LoadedModel, Service, assemble, load_model
from orthrus_backend.config import EngineSettings
from orthrus_backend.default_model import EMBEDDING_ADAPTER, ensure_default_model
from orthrus_backend.outputs import Embedded, Output, Produced
from orthrus_backend.params import EmbeddingParams, PoolingMode, SamplingParams
from orthrus_backend.request import Request
from tests.reference import Reference, prompts, texts

TOKENS = 16
TEXTS = 50
PROMPTS = prompts()
POOLINGS: tuple[PoolingMode, ...] = ("mean", "weighted_mean", "cls", "last")
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)


class Answer:
    """Collects the answer to one request."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.vector: Any = None
        self.done = threading.Event()

    def deliver(self, output: Output) -> None:
        if isinstance(output, Produced):
            self.ids.append(output.token.token)
            self.text += output.text
        elif isinstance(output, Embedded):
            self.vector = output.vector
        if output.final:
            self.done.set()

    def cancelled(self) -> bool:
        return False


def ask(service: Service, requests: Sequence[Request]) -> list[Answer]:
    for request in requests:
        request.reply = Answer()
    service.engine.submit(requests)
    for request in requests:
        assert request.reply.done.wait(120)
    return [request.reply for request in requests]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    settings = EngineSettings.from_parameters({"dtype": "float32"})
    return load_model(str(ensure_default_model()), settings)


@pytest.fixture(scope="module")
def service(loaded: LoadedModel) -> Iterator[Service]:
    parameters = {"dtype": "float32", "token_budget": "256", "chunk_size": "64", "kv_memory": "512MiB"}
    settings = EngineSettings.from_parameters(parameters)
    service = assemble(settings, loaded, embedding_adapter=EMBEDDING_ADAPTER)
    yield service
    service.engine.close()


@pytest.fixture(scope="module")
def expected(reference: Reference) -> list[list[int]]:
    return [reference.greedy(prompt, TOKENS) for prompt in PROMPTS]


def test_greedy_equals_generate_alone(service: Service, expected: list[list[int]]) -> None:
    for prompt, ids in zip(PROMPTS, expected, strict=True):
        (answer,) = ask(service, [service.intake.generate(prompt, GREEDY)])
        assert answer.ids == ids
        assert answer.text == service.tokenization.backend.decode(ids, skip_special_tokens=True)


def test_everything_at_once_equals_the_reference(
    service: Service, reference: Reference, expected: list[list[int]]
) -> None:
    before = service.engine.metrics.counters["orthrus_steps_total", (("composition", "mixed"),)]
    generates = [service.intake.generate(prompt, GREEDY) for prompt in PROMPTS]
    embeds = [service.intake.embed(text, EmbeddingParams()) for text in texts(TEXTS)]
    answers = ask(service, [*embeds, *generates])
    for answer, text in zip(answers, texts(TEXTS), strict=False):
        np.testing.assert_allclose(answer.vector, reference.embed(text), rtol=0, atol=1e-5)
    assert [answer.ids for answer in answers[TEXTS:]] == expected
    assert service.engine.metrics.counters["orthrus_steps_total", (("composition", "mixed"),)] > before


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 0])
def test_no_chunk_size_changes_a_vector(reference: Reference, loaded: LoadedModel, chunk: int) -> None:
    """Steps hold one chunk each; every pooling is taken of the same pass."""
    inputs = texts(3)
    budget = {"token_budget": str(max(chunk, 2)), "max_running": "1"} if chunk else {}
    parameters = {"dtype": "float32", "chunk_size": str(chunk), "kv_memory": "64MiB", **budget}
    service = assemble(EngineSettings.from_parameters(parameters), loaded, embedding_adapter=EMBEDDING_ADAPTER)
    requests = [service.intake.embed(text, EmbeddingParams(normalize=False)) for text in inputs]
    for request in requests:
        request.pooling = POOLINGS
    answers = ask(service, requests)
    service.engine.close()
    for answer, text in zip(answers, inputs, strict=True):
        for pooling, vector in zip(POOLINGS, np.split(answer.vector, len(POOLINGS)), strict=True):
            expected = reference.embed(text, pooling)
            np.testing.assert_allclose(vector / np.linalg.norm(vector), expected, rtol=0, atol=1e-5)


def test_questions_find_a_document_that_they_need(service: Service) -> None:
    corpus = sample_corpus()
    inputs = [document.text for document in corpus.documents] + [question.text for question in corpus.questions]
    answers = ask(service, [service.intake.embed(text, EmbeddingParams()) for text in inputs])
    documents, questions = np.split(np.stack([answer.vector for answer in answers]), [len(corpus.documents)])
    first = [corpus.documents[place].id for place in (questions @ documents.T).argmax(1)]
    found = [id in question.needs for id, question in zip(first, corpus.questions, strict=True)]
    assert sum(found) >= 4, first
