"""Words and their definitions: dictionaries in dictd's format, and WordNet's synsets."""

import gzip
import re
import string
from collections.abc import Iterator
from pathlib import Path

from tools.embedding_adapter.pairs import Pair, one_line, shortened

_ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_DIGITS = {character: value for value, character in enumerate(_ALPHABET)}
_PRONUNCIATION = re.compile(r"\\[^\\]*\\")
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_PART_OF_SPEECH = re.compile(
    r"^[^.]{0,80}?,?\s(?:n|a|adj|adv|v\. t\. & i|v\. ?[ti]|v|prep|interj|conj)\.(?: (?:pl|sing)\.)?\s*"
)
_LABELS = re.compile(r"^(?:\d+\.\s*|\([^)]{1,24}\)\s*|<[^>]{1,40}>\s*)+")
_AUTHOR = re.compile(r"\s*--\s*[A-Z][\w. ]{1,40}\.?\s*$")
_LENGTHS = range(25, 1200)  # characters of a definition
_MOST = 420


def dictd_entries(root: Path, name: str) -> Iterator[tuple[str, str]]:
    """Headwords and entries of a dictionary under the root folder of its package, in the order of the file."""
    folder = root / "usr/share/dictd"
    content = gzip.decompress((folder / f"{name}.dict.dz").read_bytes())
    seen: set[tuple[int, int]] = set()
    for line in (folder / f"{name}.index").read_text(encoding="utf-8").splitlines():
        word, offset, length = line.split("\t")[:3]
        place = _number(offset), _number(length)
        if not word.startswith("00-database") and place not in seen:
            seen.add(place)
            yield word, content[place[0] : sum(place)].decode("utf-8", "replace")


def gcide(root: Path) -> Iterator[Pair]:
    """Every word of the Collaborative International Dictionary of English, with its first sense."""
    for word, entry in dictd_entries(root, "gcide"):
        text = _PRONUNCIATION.sub("", entry)
        while text != (text := _BRACKETS.sub("", text)):
            pass
        first = next((block for block in text.split("\n\n") if one_line(block)), "")
        first = _PART_OF_SPEECH.sub("", one_line(first), count=1)
        definition = _AUTHOR.sub("", _clean(first))
        if "\\" not in definition and len(definition) in _LENGTHS and word.lower() not in definition.lower():
            yield Pair(definition, word.lower(), word.lower())


def foldoc(root: Path) -> Iterator[Pair]:
    """Every term of the Free On-line Dictionary of Computing, with the first paragraph of its entry."""
    yield from _plain(root, "foldoc")


def jargon(root: Path) -> Iterator[Pair]:
    """Every term of the Jargon File, likewise."""
    yield from _plain(root, "jargon")


def wordnet(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Definitions of WordNet's nouns and verbs, without examples, and the words that each one defines."""
    for part in ("noun", "verb"):
        for line in (root / f"usr/share/wordnet/data.{part}").read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):
                continue  # the licence
            fields, _, gloss = line.partition("|")
            numbers = fields.split()
            words = numbers[4 : 4 + 2 * int(numbers[3], 16) : 2]
            yield one_line(gloss.partition(';"')[0].partition('; "')[0]), tuple(w.replace("_", " ") for w in words)


def _plain(root: Path, name: str) -> Iterator[Pair]:
    for word, entry in dictd_entries(root, name):
        blocks = [_clean(one_line(block)) for block in entry.split("\n\n")[1:]]
        text = next((block for block in blocks if len(block) in _LENGTHS), "")
        if text:
            yield Pair(word, shortened(text, _MOST), word.lower())


def _clean(text: str) -> str:
    return shortened(_LABELS.sub("", text.replace("{", "").replace("}", "")).strip(" ;"), _MOST)


def _number(digits: str) -> int:
    """A number as dictd writes it: digits of base 64."""
    value = 0
    for digit in digits:
        value = value * 64 + _DIGITS[digit]
    return value
