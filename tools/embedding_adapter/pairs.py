"""A pair of texts that belong together, and what may be trained on. Knows nothing of where texts come from."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Pair:
    """A short text and the text that answers it. `group`: what a split keeps together, such as a source package."""

    query: str
    document: str
    group: str


def one_line(text: str) -> str:
    """`text` with every run of white space as one blank."""
    return _SPACE.sub(" ", text).strip()


def shortened(text: str, characters: int) -> str:
    """`text` cut behind a word, to at most this many characters."""
    return text if len(text) <= characters else text[: characters + 1].rpartition(" ")[0]


def held_out(group: str, percent: int) -> bool:
    """Whether a group belongs to the share that is only tested on: the same one on every machine."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4]) % 100 < percent


def unique(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Pairs whose query and document both come for the first time."""
    queries: set[str] = set()
    documents: set[str] = set()
    for pair in pairs:
        query, document = pair.query.lower(), pair.document.lower()
        if query not in queries and document not in documents and query != document:
            queries.add(query)
            documents.add(document)
            yield pair
