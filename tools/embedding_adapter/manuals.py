"""Sections of manuals in HTML: a heading with what stands below it, a sentence with the rest of its paragraph."""

import re
from collections.abc import Iterator
from pathlib import Path

from bs4 import BeautifulSoup

from tools.embedding_adapter.pairs import Pair, one_line, shortened

MANUALS = {  # package: the pages in it
    "debian-handbook": "usr/share/doc/debian-handbook/html/en-US/*.html",
    "developers-reference": "usr/share/developers-reference/*.html",
    "python3.11-doc": "usr/share/doc/python3.11/html/**/*.html",
    "postgresql-doc-15": "usr/share/doc/postgresql-doc-15/html/*.html",
    "git-doc": "usr/share/doc/git-doc/**/*.html",
}
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PARAGRAPH = range(120, 1500)  # characters
_MOST = 500


def sections(root: Path, package: str) -> Iterator[Pair]:
    """For each paragraph under the root folder of a package: its heading, and a sentence of its own, as queries."""
    for page in sorted(root.glob(MANUALS[package])):
        soup = BeautifulSoup(page.read_bytes(), "html.parser")
        title = ""
        for element in soup.select("h1, h2, h3, h4, p, div.para"):
            text = one_line(element.get_text()).replace("¶", "").strip()
            if element.name.startswith("h"):
                title = text.removeprefix("Chapter").lstrip("0123456789. ")
                continue
            if len(text) not in _PARAGRAPH:
                continue
            group = f"{package}/{page.name}"
            if len(title) > 8:
                yield Pair(title, shortened(text, _MOST), group)
            sentences = _SENTENCE.split(text)
            if len(sentences) > 2 and 40 < len(sentences[1]) < 250:
                rest = " ".join(sentences[:1] + sentences[2:])
                yield Pair(sentences[1], shortened(rest, _MOST), group)
