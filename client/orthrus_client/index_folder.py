"""`IndexFolder`: a `DocumentIndex` on disk, with how its vectors were made. Knows nothing of servers.

The folder holds the documents as JSON lines, the vectors in faiss's own format, and a manifest that names both with
their hashes. Every change writes new files and then replaces the manifest: whoever reads sees the old or the new state.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from orthrus_client.index import Document, DocumentIndex
from orthrus_client.options import EmbedOptions

try:
    from filelock import FileLock
except ImportError as error:
    raise ImportError("orthrus_client.index_folder needs filelock: pip install 'orthrus-client[retrieval]'") from error

MANIFEST = "manifest.json"
LOCK = "lock"
FORMAT = 1
PROBE = "The quick brown fox jumps over the lazy dog."
SAME = 0.999  # cosine: number formats and batches change a vector by less, another model or pooling by more


@dataclass(frozen=True, slots=True)
class Recipe:
    """How vectors are made, and what comes of it: the vector of `PROBE` is the proof."""

    model: str
    options: EmbedOptions
    probe: tuple[float, ...]

    @classmethod
    def of(cls, model: str, options: EmbedOptions, probe: NDArray[np.float32]) -> Self:
        """The recipe of a server that calls its model `model` and returns `probe` [D] for `PROBE`."""
        name = PurePath(model).name if PurePath(model).is_absolute() else model  # folders differ between machines
        return cls(name, options, tuple(probe.tolist()))

    def require(self, other: "Recipe", where: str) -> None:
        """Raises `ValueError`, naming both, if vectors of `other` cannot be compared with those of this recipe."""
        cosine = float("nan")
        if len(self.probe) == len(other.probe):
            ours, theirs = np.array(self.probe), np.array(other.probe)
            cosine = float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))
            if cosine >= SAME:
                return
        raise ValueError(f"{where} was made with {self}, which does not go together with {other} (cosine {cosine:.3f})")

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"model {self.model or 'unknown'!r}, dimension {len(self.probe)}, {options or 'default options'}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says."""

    format: int
    recipe: Recipe
    whiten: int | None
    count: int  # of documents
    documents: str  # file name
    documents_sha256: str
    vectors: str  # file name
    vectors_sha256: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in `folder`. Raises `ValueError` if there is none that this version can read."""
        try:
            fields: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise ValueError(f"{folder}: format {fields['format']}, this version reads {FORMAT}")
            recipe = fields.pop("recipe")
            options = cast(EmbedOptions, dict(recipe["options"]))
            probe = tuple(map(float, recipe["probe"]))
            manifest = cls(recipe=Recipe(str(recipe["model"]), options, probe), **fields)
        except FileNotFoundError:
            raise ValueError(f"{folder} is no index: it has no {MANIFEST}") from None
        except OSError as error:
            raise ValueError(f"{folder / MANIFEST}: {error.strerror}") from None
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{folder / MANIFEST} is damaged: {error!r}") from None
        for name in (manifest.documents, manifest.vectors):
            if PurePath(name).name != name:
                raise ValueError(f"{folder / MANIFEST} names a file outside its folder: {name!r}")
        return manifest


class IndexFolder:
    """An index that stays."""

    def __init__(self, folder: Path, manifest: Manifest, index: DocumentIndex) -> None:
        self.folder = folder
        self.manifest = manifest
        self.index = index

    @classmethod
    def create(
        cls,
        folder: Path,
        recipe: Recipe,
        documents: Sequence[Document],
        vectors: NDArray[np.float32],
        whiten: int | None = None,
    ) -> Self:
        """Writes an index of `documents` with `vectors` [N, D] to `folder`, which is made if need be.

        Raises:
            ValueError: there is an index already, or `DocumentIndex.build` raises it.
        """
        index = DocumentIndex.build(documents, vectors, whiten=whiten)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK):
            require_free(folder)
            return cls(folder, _write(folder, recipe, whiten, index), index)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The index in `folder`. Raises `ValueError` if there is none, or its files are not what was written."""
        manifest = Manifest.read(folder)
        try:
            return cls._read(folder, manifest)
        except FileNotFoundError:  # it was extended between the two reads, or a file was removed
            try:
                return cls._read(folder, Manifest.read(folder))
            except FileNotFoundError as error:
                raise ValueError(f"{folder} is damaged: {Path(error.filename).name} is missing") from None

    @classmethod
    def _read(cls, folder: Path, manifest: Manifest) -> Self:
        texts = _checked(folder / manifest.documents, manifest.documents_sha256)
        vectors = _checked(folder / manifest.vectors, manifest.vectors_sha256)
        documents = [Document(**json.loads(line)) for line in texts.decode().split("\n") if line]
        return cls(folder, manifest, DocumentIndex.from_bytes(documents, vectors))

    def new(self, documents: Sequence[Document]) -> list[Document]:
        """Those of `documents` that are not in the index. Raises `ValueError` if one is there with another text."""
        known = {document.id: document.text for document in self.index.documents}
        for document in documents:
            if known.get(document.id, document.text) != document.text:
                raise ValueError(f"document {document.id!r} is in {self.folder} with another text: build it anew")
        return [document for document in documents if document.id not in known]

    def extend(self, documents: Sequence[Document], vectors: NDArray[np.float32]) -> "IndexFolder":
        """The index with `documents` as well, written. What others added since it was opened stays, too."""
        with FileLock(self.folder / LOCK):
            current = IndexFolder.open(self.folder)
            fresh = current.new(documents)
            rows = {document.id: vector for document, vector in zip(documents, vectors, strict=True)}
            if fresh:
                current.index.add(fresh, np.stack([rows[document.id] for document in fresh]))
            manifest = _write(self.folder, current.manifest.recipe, current.manifest.whiten, current.index)
            return IndexFolder(self.folder, manifest, current.index)


def require_free(folder: Path) -> None:
    """Raises `ValueError` if `folder` holds anything that an index written there might harm."""
    if folder.exists() and (not folder.is_dir() or any(file.name != LOCK for file in folder.iterdir())):
        raise ValueError(f"{folder} is there already and not empty; an index is extended with `index add`")


def _write(folder: Path, recipe: Recipe, whiten: int | None, index: DocumentIndex) -> Manifest:
    texts = "".join(json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in index.documents).encode()
    vectors = index.to_bytes()
    names = f"documents-{_hash(texts)[:16]}.jsonl", f"vectors-{_hash(vectors)[:16]}.faiss"
    manifest = Manifest(FORMAT, recipe, whiten, len(index), names[0], _hash(texts), names[1], _hash(vectors))
    described = json.dumps(asdict(manifest)).encode()
    for name, content in ((names[0], texts), (names[1], vectors), (MANIFEST, described)):
        temporary = folder / f".{name}.new"
        temporary.write_bytes(content)
        temporary.replace(folder / name)
    for pattern in ("documents-*.jsonl", "vectors-*.faiss"):
        for file in folder.glob(pattern):
            if file.name not in names:
                file.unlink()
    return manifest


def _checked(file: Path, digest: str) -> bytes:
    content = file.read_bytes()
    if _hash(content) != digest:
        raise ValueError(f"{file} is damaged: it is not what the manifest says")
    return content


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()
