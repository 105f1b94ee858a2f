"""`orthrus-client index` and `ask`, against a real server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.commands import GREEDY, answered, failed, run
from tests.serving import RunningServer

TEXTS = {
    "gold.txt": "The Gold plan covers Category B.\n\nIt costs ten crowns.",
    "sub/gym.md": "Category B covers membership of a gym.",
    "other.jsonl": '{"id": "moon", "text": "The moon is made of rock."}\n',
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts."""
    folder = tmp_path_factory.mktemp("documents")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def index(server: RunningServer, documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index folder of them."""
    folder = tmp_path_factory.mktemp("index") / "plans"
    result = run(server, "index", "build", folder, documents, "--pooling", "mean", "--batch-size", 1)
    assert "3 documents" in result.stderr, result.output
    return folder


class TestIndex:
    def test_a_document_is_found_by_its_own_text(self, server: RunningServer, index: Path) -> None:
        query = TEXTS["sub/gym.md"]
        found = [
            json.loads(line) for line in answered(run(server, "index", "search", index, query, "--json")).splitlines()
        ]
        assert len(found) == 3
        assert found[0]["text"] == query
        assert found[0]["id"].endswith("sub/gym.md#1")
        assert found[0]["score"] == pytest.approx(1, abs=1e-5)
        out = answered(run(server, "index", "search", index, query, "--top-k", 1))
        assert out == f" 1.000  {found[0]['id']}: {query}\n"

    def test_it_is_extended(self, server: RunningServer, documents: Path, tmp_path: Path) -> None:
        folder = tmp_path / "i"
        answered(run(server, "index", "build", folder, documents / "gold.txt", documents / "other.jsonl"))
        assert "1 added, 3 documents" in run(server, "index", "add", folder, documents).stderr
        assert "0 added, 3 documents" in run(server, "index", "add", folder, documents).stderr
        out = answered(run(server, "index", "search", folder, TEXTS["sub/gym.md"], "--top-k", 1))
        assert "gym" in out

    def test_other_settings_are_refused_naming_both(self, server: RunningServer, index: Path, documents: Path) -> None:
        for arguments in (("search", index, "gym"), ("add", index, documents)):
            error = failed(run(server, "index", *arguments, "--pooling", "last"))
            assert "pooling=mean" in error
            assert "pooling=last" in error
        assert "dimension 64" in failed(run(server, "index", "search", index, "gym", "--dimensions", 64))

    def test_a_query_may_have_an_instruction_of_its_own(self, server: RunningServer, index: Path) -> None:
        plain = answered(run(server, "index", "search", index, "gym", "--json"))
        told = answered(run(server, "index", "search", index, "gym", "--json", "--instruction", "Find the plan: "))
        assert json.loads(told.splitlines()[0])["score"] != json.loads(plain.splitlines()[0])["score"]

    def test_nothing_is_overwritten_and_no_index_is_told(
        self, server: RunningServer, index: Path, documents: Path
    ) -> None:
        assert "not empty" in failed(run(server, "index", "build", index, documents))
        assert "no index" in failed(run(server, "index", "search", documents, "gym"))

    def test_a_whitened_index_is_extended_and_searched(
        self, server: RunningServer, documents: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "i"
        answered(run(server, "index", "build", folder, documents, "--whiten", 2))
        (tmp_path / "more.txt").write_text("Ships sail on water.")
        answered(run(server, "index", "add", folder, tmp_path / "more.txt"))
        assert "Ships" in answered(run(server, "index", "search", folder, "Ships sail on water.", "--top-k", 1))

    def test_without_faiss_the_extra_to_install_is_named(self, index: Path) -> None:
        code = "import sys; sys.modules['faiss'] = None; from orthrus_client.cli.app import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "index", "search", str(index), "x"], capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert "pip install 'orthrus-client[retrieval]'" in done.stderr
        assert "Traceback" not in done.stderr


class TestAsk:
    def test_every_round_is_shown(self, server: RunningServer, index: Path) -> None:
        out = answered(run(server, "ask", index, "Does Gold cover a gym?", "--documents", 2, *GREEDY, "--rounds", 3))
        for number in (1, 2, 3):
            assert f"round {number}\nquery: Does Gold cover a gym?" in out
        rounds = [part.splitlines() for part in out.split("round ")[1:]]
        assert all(len([line for line in lines if "#1: " in line or "moon: " in line]) == 2 for lines in rounds)
        answer = " ".join(line for line in rounds[0][4:] if line).strip()
        assert answer
        assert answer.split()[0] in rounds[1][1], "the second query holds the first answer"

    def test_a_question_comes_on_stdin_too(self, server: RunningServer, index: Path) -> None:
        arguments = "--documents", 1, *GREEDY, "--rounds", 1
        out = answered(run(server, "ask", index, "Gold?", *arguments))
        assert answered(run(server, "ask", index, *arguments, stdin="Gold?\n")) == out

    def test_the_likeliest_tokens_are_taken_unless_told_otherwise(self, server: RunningServer, index: Path) -> None:
        command = "ask", index, "Gold?", "--rounds", 1, "--max-tokens", 12
        greedy = answered(run(server, *command, "--temperature", 0))
        assert answered(run(server, *command)) == greedy
        assert answered(run(server, *command, "--temperature", 2, "--seed", 1)) != greedy
