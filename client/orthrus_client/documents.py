"""Reads documents for an index from files: texts, cut at paragraphs, and JSON lines, taken as they are."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from orthrus_client.index import Document

try:
    from semantic_text_splitter import TextSplitter
except ImportError as error:
    raise ImportError(
        "orthrus_client.documents needs semantic-text-splitter: pip install 'orthrus-client[retrieval]'"
    ) from error

TEXTS = (".txt", ".md", ".rst")  # in a folder; a file that is named may be called anything
JSON_LINES = ".jsonl"
CHUNK_CHARACTERS = 1200  # about 300 tokens: room for several in one prompt
SMALLEST_SHARE = 6  # paragraphs are joined up to this part of a chunk


def read_documents(sources: Sequence[Path], *, chunk_characters: int = CHUNK_CHARACTERS) -> list[Document]:
    """The documents in files and folders.

    A text becomes pieces of at most `chunk_characters`, cut between paragraphs where possible, else between sentences
    or words; short paragraphs are joined. Each line of a .jsonl file is an object with a `text` and, if it likes, an
    `id`. Ids are made of the path as it was given and the number of the piece or line.

    Raises:
        ValueError: a source is not there or has no text, or what is in it is not readable; the message says where.
    """
    splitter = _splitter(chunk_characters)
    documents: dict[str, Document] = {}
    for file in _files(sources):
        lines = _json_lines(file) if file.suffix == JSON_LINES else _pieces(file.as_posix(), _content(file), splitter)
        for document in lines:
            if document.id in documents:
                raise ValueError(f"{file}: two documents have the id {document.id!r}")
            documents[document.id] = document
    if not documents:
        raise ValueError(f"{', '.join(map(str, sources))}: there is no text in it")
    return list(documents.values())


def split_text(name: str, text: str, *, chunk_characters: int = CHUNK_CHARACTERS) -> list[Document]:
    """The pieces of one text, cut as `read_documents` cuts, with ids `name`#1 and so on; none if it is blank."""
    return list(_pieces(name, text, _splitter(chunk_characters)))


def _splitter(chunk_characters: int) -> TextSplitter:
    if chunk_characters < 1:
        raise ValueError(f"chunk_characters is at least 1, not {chunk_characters}")
    return TextSplitter((max(1, chunk_characters // SMALLEST_SHARE), chunk_characters))


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    for source in sources:
        if not source.is_dir():
            yield source
            continue
        files = sorted(file for file in source.rglob("*") if file.suffix in (*TEXTS, JSON_LINES) and file.is_file())
        if not files:
            raise ValueError(f"{source}: no {', '.join(TEXTS)} or {JSON_LINES} file in this folder")
        yield from files


def _pieces(name: str, text: str, splitter: TextSplitter) -> Iterator[Document]:
    for number, piece in enumerate(splitter.chunks(text), 1):
        yield Document(f"{name}#{number}", piece)


def _json_lines(file: Path) -> Iterator[Document]:
    for number, line in enumerate(_content(file).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: not JSON: {error}") from None
        text = entry.get("text") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f'{file}, line {number}: not an object with a "text"')
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can write half a character
            raise ValueError(f"{file}, line {number}: not valid Unicode") from None
        yield Document(str(entry.get("id", f"{file.as_posix()}#{number}")), text)


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text (byte {error.start})") from None
