"""An index on disk, without a server."""

import json
from pathlib import Path

import numpy as np
import pytest
from orthrus_client.index import Document, DocumentIndex
from orthrus_client.index_folder import IndexFolder, Recipe

DOCUMENTS = [Document(f"d{n}", f"text\n{n} é") for n in range(20)]
VECTORS = np.random.default_rng(3).normal(size=(20, 8)).astype(np.float32)
PROBE = np.arange(1, 9, dtype=np.float32)
RECIPE = Recipe.of("/models/small", {"pooling": "mean"}, PROBE)


@pytest.mark.parametrize("whiten", [None, 4])
def test_it_is_found_again_as_it_was(tmp_path: Path, whiten: int | None) -> None:
    IndexFolder.create(tmp_path / "a" / "i", RECIPE, DOCUMENTS, VECTORS, whiten)
    opened = IndexFolder.open(tmp_path / "a" / "i")
    assert opened.manifest.recipe == RECIPE
    assert opened.index.documents == tuple(DOCUMENTS)
    direct = DocumentIndex.build(DOCUMENTS, VECTORS, whiten=whiten)
    assert opened.index.search(PROBE, 5) == direct.search(PROBE, 5)


def test_extending_equals_building_whole(tmp_path: Path) -> None:
    IndexFolder.create(tmp_path, RECIPE, DOCUMENTS[:12], VECTORS[:12]).extend(DOCUMENTS[12:], VECTORS[12:])
    opened = IndexFolder.open(tmp_path)
    assert len(opened.index) == opened.manifest.count == 20
    assert opened.index.search(PROBE, 20) == DocumentIndex.build(DOCUMENTS, VECTORS).search(PROBE, 20)
    assert len(list(tmp_path.iterdir())) == 4, "manifest, documents, vectors and lock: nothing of the old state stays"


def test_two_who_extend_lose_nothing(tmp_path: Path) -> None:
    IndexFolder.create(tmp_path, RECIPE, DOCUMENTS[:10], VECTORS[:10])
    one, other = IndexFolder.open(tmp_path), IndexFolder.open(tmp_path)
    one.extend(DOCUMENTS[10:16], VECTORS[10:16])
    other.extend(DOCUMENTS[14:], VECTORS[14:])
    assert sorted(d.id for d in IndexFolder.open(tmp_path).index.documents) == sorted(d.id for d in DOCUMENTS)


def test_what_is_in_it_already_is_not_new(tmp_path: Path) -> None:
    folder = IndexFolder.create(tmp_path, RECIPE, DOCUMENTS[:10], VECTORS[:10])
    assert folder.new(DOCUMENTS[8:12]) == DOCUMENTS[10:12]
    with pytest.raises(ValueError, match=r"'d3'.*another text"):
        folder.new([Document("d3", "other")])


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty"):
        IndexFolder.create(tmp_path, RECIPE, DOCUMENTS, VECTORS)
    IndexFolder.create(tmp_path / "i", RECIPE, DOCUMENTS, VECTORS)
    with pytest.raises(ValueError, match="not empty"):
        IndexFolder.create(tmp_path / "i", RECIPE, DOCUMENTS, VECTORS)


@pytest.mark.parametrize(
    "other",
    [
        Recipe.of("large", {"pooling": "last"}, PROBE[::-1]),
        Recipe.of("large", {"pooling": "last"}, PROBE[:4]),
    ],
)
def test_another_recipe_is_refused_naming_both(other: Recipe) -> None:
    RECIPE.require(Recipe.of("renamed", {}, 1.0001 * PROBE), "here")
    with pytest.raises(ValueError, match=r"here .*'small'.*pooling=mean.*'large'.*pooling=last"):
        RECIPE.require(other, "here")


def _manifest(folder: Path, **changes: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_damage_is_seen(tmp_path: Path) -> None:
    for pattern in ("documents-*", "vectors-*"):
        folder = tmp_path / pattern[0]
        IndexFolder.create(folder, RECIPE, DOCUMENTS, VECTORS)
        file = next(folder.glob(pattern))
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match=f"{file.name} is damaged"):
            IndexFolder.open(folder)
        file.unlink()
        with pytest.raises(ValueError, match=f"damaged: {file.name} is missing"):
            IndexFolder.open(folder)


def test_a_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no index: it has no manifest\.json"):
        IndexFolder.open(tmp_path)
    IndexFolder.create(tmp_path / "i", RECIPE, DOCUMENTS, VECTORS)
    for changes, fault in (
        ({"format": 2}, "format 2, this version reads 1"),
        ({"documents": "../x"}, "outside its folder: '../x'"),
        ({"recipe": 3}, "damaged"),
        ({"surprise": 3}, "surprise"),
    ):
        before = (tmp_path / "i" / "manifest.json").read_text()
        _manifest(tmp_path / "i", **changes)
        with pytest.raises(ValueError, match=fault):
            IndexFolder.open(tmp_path / "i")
        (tmp_path / "i" / "manifest.json").write_text(before)
    (tmp_path / "i" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        IndexFolder.open(tmp_path / "i")
