"""What trains and measures the default model's embedding adapter."""

import gzip
import json
import posixpath
import string
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
import typer

from orthrus_backend.adapters import load_adapter
from orthrus_backend.assembly import build_service, load_model
from orthrus_backend.config import EngineSettings
from orthrus_backend.default_model import ensure_default_model
from tests.engine.sentence_folders import embed
from tools.embedding_adapter import functions, manuals
from tools.embedding_adapter.batches import Batches
from tools.embedding_adapter.debian import DebianArchive
from tools.embedding_adapter.dictionaries import foldoc, gcide, wordnet
from tools.embedding_adapter.folder import save_adapter
from tools.embedding_adapter.loss import losses
from tools.embedding_adapter.mixture import RetrievalSet, Texts
from tools.embedding_adapter.pairs import Pair, held_out, unique
from tools.embedding_adapter.ranking import by_vectors, by_words, measures
from tools.embedding_adapter.run import Run, Settings
from tools.train_adapter import WEIGHTS, source_weights

GCIDE = {
    "Lamp": "Lamp \\L[a^]mp\\, n. [F. lampe, from L. lampas [a torch].]\n   1. (Mech.) A vessel that gives {light} by"
    " oil. --Somebody.\n   [1913 Webster]\n\n   2. Another sense.",
    "Sour": "Sour \\Sour\\, a.\n   Too short.",
}
FOLDOC = {"pipe": "pipe\n\n   <operating system> What carries the {output} of one program to the input of another.\n"}
SYNSETS = [
    f'0000{n} 03 n 02 word{n} 0 twin_of_{n} 0 000 @ | what is meant by the number {n} here; "an example of {n}"'
    for n in range(12)
]


class FakeArchive:
    """Packages in a folder, a few words each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        dictionaries = folder / "usr/share/dictd"
        dictionaries.mkdir(parents=True)
        for name, entries in (("gcide", {**GCIDE, **_words()}), ("foldoc", FOLDOC), ("jargon", FOLDOC)):
            content, index = b"", []
            for word, entry in entries.items():
                index.append(f"{word}\t{_base64(len(content))}\t{_base64(len(entry.encode()))}")
                content += entry.encode()
            (dictionaries / f"{name}.dict.dz").write_bytes(gzip.compress(content))
            (dictionaries / f"{name}.index").write_text("\n".join(index))
        (folder / "usr/share/wordnet").mkdir()
        (folder / "usr/share/wordnet/data.noun").write_text("  1 A licence\n" + "\n".join(SYNSETS))
        (folder / "usr/share/wordnet/data.verb").write_text("")

    def unpacked(self, package: str) -> Path:
        return self._folder

    def descriptions(self) -> list[Pair]:
        return [Pair(f"tool number {n}", f"A program that does thing number {n}.", f"source{n}") for n in range(200)]


def _words() -> dict[str, str]:
    return {f"word{n}": f"word{n} \\w\\, n.\n   A definition of some length, the one of {n}." for n in range(20)}


def _base64(number: int) -> str:
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    digits = alphabet[number % 64]
    while number := number // 64:
        digits = alphabet[number % 64] + digits
    return digits


@pytest.fixture
def archive(tmp_path: Path) -> DebianArchive:
    return cast(DebianArchive, FakeArchive(tmp_path / "archive"))


class TestTexts:
    def test_a_definition_is_what_remains_of_an_entry(self, archive: DebianArchive) -> None:
        assert next(gcide(archive.unpacked(""))) == Pair("A vessel that gives light by oil.", "lamp", "lamp")
        text = "What carries the output of one program to the input of another."
        assert list(foldoc(archive.unpacked(""))) == [Pair("pipe", text, "pipe")]
        assert list(wordnet(archive.unpacked("")))[3] == ("what is meant by the number 3 here", ("word3", "twin of 3"))

    def test_a_function_stands_without_its_docstring(self) -> None:
        found = {pair.document.split("(")[0]: pair for pair in functions.of_file(Path(posixpath.__file__), "stdlib")}
        pair = found["def commonpath"]
        assert pair.query == "Given a sequence of path names, returns the longest common sub-path."
        assert "Given a sequence" not in pair.document

    def test_sections_of_a_manual(self, tmp_path: Path) -> None:
        page = tmp_path / "usr/share/developers-reference/a.html"
        page.parent.mkdir(parents=True)
        rest = "The first sentence is here. The last one ends this paragraph, which is long enough to be taken by then."
        sentence = "The second sentence is the one that is taken out of it."
        text = rest.replace("here. ", f"here. {sentence} ")
        page.write_text(f"<h2>2.1. How it is done</h2><p>{text}</p><p>Short.</p>")
        group = "developers-reference/a.html"
        assert list(manuals.sections(tmp_path, "developers-reference")) == [
            Pair("How it is done", text, group),
            Pair(sentence, rest, group),
        ]

    def test_no_text_of_the_sets_is_trained_on(self, archive: DebianArchive, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            functions, "of_distribution", lambda name: iter([Pair(f"what {name} does", f"def f(): {name}", name)])
        )
        monkeypatch.setattr(functions, "of_standard_library", lambda: iter([]))
        texts = Texts(archive, queries=5, distractors=3)
        trained = texts.training()
        sets = {one.name: one for one in texts.sets()}
        words = sets["definition to word"]
        assert len(words.queries) == 5
        assert len(words.documents) == 2 * (5 + 3)
        assert {words.documents[place] for place in words.relevant[0]} <= set(words.documents)
        assert {pair.document for pair in trained["words"]}.isdisjoint(words.documents)
        glosses = {pair.query: pair.document for pair in trained["synsets"]}
        assert len(glosses) == 12 - (5 + 3)
        assert glosses.keys().isdisjoint(words.queries)
        assert set(glosses.values()).isdisjoint(words.documents)
        assert trained["words"], "nothing is left to train on"
        packages = sets["description to package"]
        assert 0 < len(packages.documents) <= 5
        assert {pair.query for pair in trained["packages"]}.isdisjoint(packages.documents)
        learnt = {pair.group for pair in trained["functions"]}
        assert learnt
        assert learnt.isdisjoint(document.split()[-1] for document in sets["docstring to function"].documents)

    def test_a_share_is_held_out_by_group_and_the_same_everywhere(self) -> None:
        assert [n for n in range(40) if held_out(f"g{n}", 15)] == [9, 12, 15, 16, 24, 28, 32, 33, 36, 39]
        assert not held_out("anything", 0)
        assert held_out("anything", 100)

    def test_what_comes_again_is_left_out(self) -> None:
        pairs = [Pair("a", "b", ""), Pair("A", "c", ""), Pair("d", "B", ""), Pair("e", "e", ""), Pair("f", "g", "")]
        assert list(unique(pairs)) == [pairs[0], pairs[4]]


class TestTraining:
    PAIRS = tuple(Pair(f"question {n} about {n * n}", f"the answer to {n} is {n * n}", "") for n in range(40))

    def test_a_batch_is_a_function_of_seed_and_step(self) -> None:
        sources = {"one": self.PAIRS, "two": self.PAIRS[:20]}
        batches = [Batches(sources, {"one": 1, "two": 1}, 16, seed) for seed in (1, 1, 2)]
        assert [batches[0][step] for step in range(9)] == [batches[1][step] for step in range(9)]
        assert [batches[0][step] for step in range(9)] != [batches[2][step] for step in range(9)]
        assert {batches[0][step][0] for step in range(20)} == {"one", "two"}
        assert all(len(set(batches[0][step][1])) == 16 for step in range(9))
        with pytest.raises(ValueError, match=r"'two' has 20 pairs.*batch of 21"):
            Batches(sources, {"one": 1, "two": 1}, 21, 1)

    def test_the_loss_knows_what_is_right_and_what_is_the_same(self) -> None:
        same = torch.eye(4).repeat(2, 1)  # each document is its query's
        right = losses(same, same)
        assert right.first == 1
        assert right.contrastive < 1e-6
        assert abs(right.distillation) < 1e-5
        crossed = losses(torch.eye(4)[[0, 1, 2, 3, 1, 0, 3, 2]], same)
        assert crossed.first == 0
        assert crossed.contrastive > 10
        # the teacher calls the first two the same: confusing them costs nothing
        alike = torch.eye(4)[[0, 0, 2, 3, 0, 0, 2, 3]]
        assert losses(torch.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]], alike).contrastive < 1e-6
        given = torch.nn.functional.normalize(torch.randn(8, 5), dim=1).requires_grad_()
        losses(given, same).distillation.backward()
        assert given.grad is not None
        assert given.grad.abs().sum() > 0

    def test_a_run_that_was_stopped_ends_as_one_that_was_not(self, tmp_path: Path) -> None:
        weights = {"one": 1.0}
        settings = Settings(4, 8, 4, "mean", 1e-3, 1.0, 16, 3, "Of it:\n", weights)
        batches = Batches({"one": self.PAIRS}, weights, 8, 3)
        whole = Run(tmp_path / "whole", settings, batches)
        whole.go_on()
        stopped = Run(tmp_path / "stopped", settings, batches)
        stopped.go_on(until=2)
        with pytest.raises(ValueError, match="other settings"):
            Run(tmp_path / "stopped", replace(settings, rank=8), batches)
        again = Run(tmp_path / "stopped", settings, batches)
        again.go_on()
        texts = ["a text", "and another one"]
        with torch.no_grad():
            torch.testing.assert_close(again.student(texts), whole.student(texts), rtol=0, atol=0)
        steps = [json.loads(line)["step"] for line in (tmp_path / "stopped" / "log.jsonl").read_text().splitlines()]
        assert steps == [0, 1, 2, 3]
        save_adapter(tmp_path / "adapter", again.student.model, "mean", settings.prompt)
        backbone = load_model(str(ensure_default_model()), EngineSettings()).backbone
        adapter = load_adapter("a", tmp_path / "adapter", backbone.model, backbone.dtype, backbone.device)
        assert len(adapter.layers) == 20 * 7
        parameters = {"dtype": "float32", "kv_memory": "16MiB", "embedding_adapter": str(tmp_path / "adapter")}
        service = build_service(EngineSettings.from_parameters({"model": str(ensure_default_model()), **parameters}))
        served = embed(service, texts)
        service.close()
        cosines = (served * again.student(texts).detach().numpy()).sum(1)  # weights were written in bfloat16
        assert cosines.min() > 0.999
        onward = Run(tmp_path / "onward", replace(settings, start=str(tmp_path / "adapter")), batches)
        with torch.no_grad():  # which was written in bfloat16
            torch.testing.assert_close(onward.student(texts), whole.student(texts), rtol=0, atol=2e-2)
            fresh = Run(tmp_path / "fresh", settings, batches).student(texts)
            assert not torch.allclose(fresh, whole.student(texts), rtol=0, atol=2e-2)
        with pytest.raises(ValueError, match="not the shape"):
            Run(tmp_path / "other", replace(settings, rank=8, start=str(tmp_path / "adapter")), batches)

    def test_weights_are_of_sources_that_there_are(self) -> None:
        assert source_weights([]) == WEIGHTS
        assert source_weights(["words=2", "terms=0.5"]) == {"words": 2.0, "terms": 0.5}
        for wrong in ("words", "words=x", "nothing=1", "words=-1"):
            with pytest.raises(typer.BadParameter, match=wrong):
                source_weights([wrong])


class TestRanking:
    SET = RetrievalSet(
        "three", ("red apples", "blue sky"), ("apples", "pears", "the blue sky"), (frozenset([0]), frozenset([2, 1]))
    )

    def test_measures_are_the_known_ones(self) -> None:
        found = measures(np.array([[1, 0, 2], [2, 0, 1]]), self.SET)
        assert found["recall@1"] == pytest.approx((0 + 1 / 2) / 2)
        assert found["recall@10"] == 1
        assert found["MRR@10"] == pytest.approx((1 / 2 + 1) / 2)
        ideal = 1 + 1 / np.log2(3)
        assert found["nDCG@10"] == pytest.approx((1 / np.log2(3) + (1 + 1 / 2) / ideal) / 2)

    def test_by_words_and_by_vectors(self) -> None:
        assert by_words(self.SET.queries, self.SET.documents)[:, 0].tolist() == [0, 2]
        vectors = np.eye(3, dtype=np.float32)
        assert by_vectors(vectors[:2], vectors[::-1])[:, 0].tolist() == [2, 1]
        lengths = np.array([[1], [5], [0.2]], dtype=np.float32)
        assert by_vectors(np.array([[1.0, 0.9, 0]], dtype=np.float32), lengths * vectors)[0].tolist() == [0, 1, 2]

    def test_a_hash_tells_sets_apart(self) -> None:
        assert self.SET.sha256() == replace(self.SET, name="other").sha256()
        assert self.SET.sha256() != replace(self.SET, queries=("red apple", "blue sky")).sha256()
