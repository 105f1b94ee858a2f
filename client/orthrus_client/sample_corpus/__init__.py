"""`sample_corpus()`: thirty documents about a made-up insurer and five questions, each of which takes two of them."""

import json
from dataclasses import dataclass
from importlib.resources import files

from orthrus_client.index import Document


@dataclass(frozen=True, slots=True)
class SampleQuestion:
    """A question, and the ids of the documents that its answer takes."""

    text: str
    needs: frozenset[str]


@dataclass(frozen=True, slots=True)
class SampleCorpus:
    """What there is to ask, and over what."""

    company: str
    documents: tuple[Document, ...]
    questions: tuple[SampleQuestion, ...]


def sample_corpus() -> SampleCorpus:
    """The corpus that comes with this package."""
    content = json.loads(files(__name__).joinpath("corpus.json").read_text(encoding="utf-8"))
    return SampleCorpus(
        content["company"],
        tuple(Document(**document) for document in content["documents"]),
        tuple(SampleQuestion(question["text"], frozenset(question["needs"])) for question in content["questions"]),
    )
