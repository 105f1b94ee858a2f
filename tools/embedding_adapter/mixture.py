"""What the adapter is trained on, and the three retrieval sets that it is measured on, from which training has nothing.

A share of Debian's source packages, whole Python distributions, and all words of the WordNet set are kept apart.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from functools import cached_property

from tools.embedding_adapter import dictionaries, functions, manuals
from tools.embedding_adapter.debian import DebianArchive
from tools.embedding_adapter.pairs import Pair, held_out, unique

TRAINED_DISTRIBUTIONS = ("torch", "transformers", "sympy", "matplotlib", "networkx", "peft", "pydantic", "openai")
TESTED_DISTRIBUTIONS = ("scikit-learn", "scipy", "nltk")
_HELD_OUT_PACKAGES = 15  # percent of the source packages
_QUERIES = 1500
_DISTRACTORS = 3000
_SEED = 1


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Queries, documents, and for each query the positions of the documents that answer it."""

    name: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    relevant: tuple[frozenset[int], ...]

    def sha256(self) -> str:
        """Of all texts and answers: two runs with the same hash measured the same."""
        content = [self.queries, self.documents, [sorted(answer) for answer in self.relevant]]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


class Texts:
    """All text, read once from an archive and from this environment's Python packages."""

    def __init__(self, archive: DebianArchive, queries: int = _QUERIES, distractors: int = _DISTRACTORS) -> None:
        """`queries`: of each set, at most; `distractors`: further synsets whose words no query asks for."""
        self._archive = archive
        self._queries = queries
        self._distractors = distractors

    def training(self) -> dict[str, list[Pair]]:
        """Pairs by source, neighbours in a source standing beside each other."""
        words = self._tested_words
        glosses = {gloss.lower() for gloss, _ in self._synsets}
        sources: dict[str, list[Pair]] = {
            "packages": [p for p in self._descriptions if not held_out(p.group, _HELD_OUT_PACKAGES)],
            "synsets": [
                Pair(gloss, random.Random(gloss).choice(synset), "")
                for gloss, synset in self._plain_synsets
                if words.isdisjoint(synset)
            ],
            "words": list(dictionaries.gcide(self._archive.unpacked("dict-gcide"))),
            "terms": [
                *dictionaries.foldoc(self._archive.unpacked("dict-foldoc")),
                *dictionaries.jargon(self._archive.unpacked("dict-jargon")),
            ],
            "manuals": [
                pair for name in manuals.MANUALS for pair in manuals.sections(self._archive.unpacked(name), name)
            ],
            "functions": [
                *functions.of_standard_library(),
                *(pair for name in TRAINED_DISTRIBUTIONS for pair in functions.of_distribution(name)),
            ],
        }
        for name in ("words", "terms"):
            sources[name] = [p for p in sources[name] if p.group not in words and p.query.lower() not in glosses]
        return {name: list(unique(pairs)) for name, pairs in sources.items()}

    def sets(self) -> list[RetrievalSet]:
        """The three sets; hold nothing that `training` has."""
        kept = [pair for pair in self._descriptions if held_out(pair.group, _HELD_OUT_PACKAGES)]
        one_of_each = list({pair.group: pair for pair in kept}.values())
        tested = [pair for name in TESTED_DISTRIBUTIONS for pair in functions.of_distribution(name)]
        # A package is looked for by its long description, as its synopsis names it; a function by what it does.
        packages = [Pair(pair.document, pair.query, pair.group) for pair in one_of_each]
        return [
            self._definitions(),
            _paired("description to package", packages, self._queries),
            _paired("docstring to function", list(unique(tested)), self._queries),
        ]

    def _definitions(self) -> RetrievalSet:
        words = sorted(self._tested_words)
        places = {word: place for place, word in enumerate(words)}
        asked = self._synsets[: self._queries]
        return RetrievalSet(
            "definition to word",
            tuple(gloss for gloss, _ in asked),
            tuple(words),
            tuple(frozenset(places[word.lower()] for word in synset) for _, synset in asked),
        )

    @cached_property
    def _descriptions(self) -> list[Pair]:
        return self._archive.descriptions()

    @cached_property
    def _synsets(self) -> list[tuple[str, tuple[str, ...]]]:
        """Those of the set, then those whose words are only there to be told apart."""
        return random.Random(_SEED).sample(sorted(self._plain_synsets), self._queries + self._distractors)

    @cached_property
    def _plain_synsets(self) -> list[tuple[str, tuple[str, ...]]]:
        """Definitions and words of WordNet without names, in its order."""
        synsets = dict(dictionaries.wordnet(self._archive.unpacked("wordnet-base")))
        return [(g, w) for g, w in synsets.items() if len(g) > 20 and all(word.islower() for word in w)]

    @cached_property
    def _tested_words(self) -> frozenset[str]:
        return frozenset(word.lower() for _, words in self._synsets for word in words)


def _paired(name: str, pairs: list[Pair], most: int) -> RetrievalSet:
    chosen = random.Random(_SEED).sample(pairs, min(len(pairs), most))
    documents = tuple(pair.document for pair in chosen)
    return RetrievalSet(
        name, tuple(pair.query for pair in chosen), documents, tuple(frozenset([place]) for place in range(len(chosen)))
    )
