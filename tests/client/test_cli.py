"""`orthrus-client` as its users run it, against a real server."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from orthrus_client import OrthrusClient
from orthrus_client.cli.app import app
from typer.testing import CliRunner, Result

from tests.client.test_clients import ended
from tests.reference import Reference
from tests.serving import RunningServer

COMMAND = [sys.executable, "-m", "orthrus_client"]
GREEDY = ["--max-tokens", "12", "--temperature", "0"]
TEXTS = {
    "gold.txt": "The Gold plan covers Category B.\n\nIt costs ten crowns.",
    "sub/gym.md": "Category B covers membership of a gym.",
    "other.jsonl": '{"id": "moon", "text": "The moon is made of rock."}\n',
}


def run(server: RunningServer, *arguments: object, stdin: str | None = None) -> Result:
    """A command, in this process."""
    environment = {"ORTHRUS_URL": server.grpc, "COLUMNS": "200"}
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=environment)


def answered(result: Result) -> str:
    """What a command wrote that went well."""
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(result: Result, status: int = 1) -> str:
    """The one line that a command wrote that went wrong."""
    assert result.exit_code == status, result.output
    assert result.stderr.startswith("error: ") or status == 2
    assert result.stderr.count("\n") == 1 or status == 2
    return result.stderr


@pytest.fixture
def client(server: RunningServer) -> Iterator[OrthrusClient]:
    with OrthrusClient(server.grpc) as opened:
        yield opened


class TestEmbed:
    def test_texts_become_json_lines(self, server: RunningServer, client: OrthrusClient) -> None:
        out = answered(run(server, "embed", "a cat", "é", "--pooling", "last", "--dimensions", 8))
        lines = [json.loads(line) for line in out.splitlines()]
        wanted = client.embed_with_usage(["a cat", "é"], pooling="last", dimensions=8)
        assert [line["text"] for line in lines] == ["a cat", "é"]
        assert [line["num_input_tokens"] for line in lines] == wanted.num_input_tokens.tolist()
        np.testing.assert_allclose([line["embedding"] for line in lines], wanted.vectors, rtol=0, atol=1e-5)

    def test_lines_of_a_file_become_an_array(
        self, server: RunningServer, client: OrthrusClient, tmp_path: Path
    ) -> None:
        (tmp_path / "in.txt").write_text("one\ntwo é\nthree\n")
        arguments = "embed", "-f", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "--batch-size", 2
        assert answered(run(server, *arguments)) == ""
        vectors = np.load(tmp_path / "out.npy", allow_pickle=False)
        np.testing.assert_allclose(vectors, client.embed(["one", "two é", "three"]), rtol=0, atol=1e-5)
        assert vectors.dtype == np.float32

    def test_lines_of_stdin_become_a_file_of_json_lines(self, server: RunningServer, tmp_path: Path) -> None:
        answered(run(server, "embed", "-o", tmp_path / "out.jsonl", stdin="one\ntwo\n"))
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["one", "two"]

    def test_both_protocols_and_a_bar(self, server: RunningServer) -> None:
        result = run(
            server, "embed", "a", "b", "--batch-size", 1, "--progress", "--protocol", "http", "--url", server.http
        )
        assert len(answered(result).splitlines()) == 2
        assert "2/2" in result.stderr

    def test_what_cannot_be_done_is_told_before_it_is_begun(self, server: RunningServer, tmp_path: Path) -> None:
        assert "line 2" in failed(run(server, "embed", stdin="one\n\ntwo\n"))
        assert "out.bin" in failed(run(server, "embed", "a", "-o", "out.bin"), 2)
        assert "no folder" in failed(run(server, "embed", "a", "-o", tmp_path / "none" / "a.npy"), 2)
        assert "not both" in failed(run(server, "embed", "a", "-f", "b"), 2)
        assert "No such file" in failed(run(server, "embed", "-f", tmp_path / "none"))

    def test_options_reach_the_server(self, server: RunningServer) -> None:
        assert "1024" in failed(run(server, "embed", "word " * 2000, "--truncate", "error"))
        assert "nobody" in failed(run(server, "embed", "a", "--adapter", "nobody"))
        assert "nothing" in failed(run(server, "embed", "a", "--prompt-name", "nothing"))


class TestGenerate:
    def test_the_text_is_the_references(self, server: RunningServer, reference: Reference) -> None:
        wanted = reference.greedy_text("The capital of France is", 12)
        assert answered(run(server, "generate", "The capital of France is", *GREEDY)) == wanted + "\n"
        assert answered(run(server, "generate", *GREEDY, stdin="The capital of France is")) == wanted + "\n"
        told = json.loads(answered(run(server, "generate", "The capital of France is", *GREEDY, "--json")))
        assert (told["text"], told["num_input_tokens"]) == (wanted, 5)

    def test_sampling_options_reach_the_server(self, server: RunningServer) -> None:
        drawn = ["generate", "Once", "--max-tokens", 8, "--seed", 5, "--top-k", 50, "--temperature", 2]
        assert answered(run(server, *drawn)) == answered(run(server, *drawn))
        assert "top_p" in failed(run(server, "generate", "Once", "--top-p", "7"))
        stopped = json.loads(answered(run(server, "generate", "1, 2, 3, 4,", "--stop", "6", *GREEDY, "--json")))
        assert stopped["finish_reason"] == "stop"
        assert "6" not in stopped["text"]


class TestChat:
    def test_lines_of_stdin_are_turns_of_one_conversation(self, server: RunningServer, client: OrthrusClient) -> None:
        messages = [{"role": "system", "content": "Be brief."}]
        wanted = []
        for question in ("My name is Ann.", "What is my name?"):
            messages.append({"role": "user", "content": question})
            wanted.append(client.chat(messages, max_tokens=12, temperature=0).text.strip())  # type: ignore[arg-type]
            messages.append({"role": "assistant", "content": wanted[-1]})
        stdin = "My name is Ann.\n\nWhat is my name?\n"
        out = answered(run(server, "chat", *GREEDY, "--system", "Be brief.", stdin=stdin))
        assert out == "".join(f"{answer}\n" for answer in wanted)
        again = answered(run(server, "chat", *GREEDY, stdin="Name a colour.\n/forget\nName a colour.\n"))
        assert again[: len(again) // 2] * 2 == again

    def test_the_first_failure_ends_a_conversation_without_a_terminal(self, server: RunningServer) -> None:
        assert "top_p" in failed(run(server, "chat", "--top-p", "7", stdin="one\ntwo\n"))

    def test_ctrl_c_ends_the_answer_and_not_the_conversation(self, server: RunningServer) -> None:
        before = ended(server, "cancelled")
        ours, theirs = pty.openpty()
        command = [*COMMAND, "chat", "--url", server.grpc, "--max-tokens", "900", "--ignore-eos", "--temperature", "0"]
        chat = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        terminal = _Terminal(ours)
        try:
            terminal.wait_for("> ")
            for _ in range(2):
                os.write(ours, b"Tell me a story.\n")
                terminal.wait_for("story.")
                terminal.wait_for(" ")  # a first word of the answer
                chat.send_signal(signal.SIGINT)
                terminal.wait_for("stopped")
                terminal.wait_for("> ")
            os.write(ours, b"half a line")
            terminal.wait_for("half a line")
            time.sleep(0.3)  # until it waits for the rest
            chat.send_signal(signal.SIGINT)
            terminal.wait_for("> ")
            os.write(ours, b"\x04")
            assert chat.wait(20) == 0
        finally:
            chat.kill()
            chat.wait()
            os.close(ours)
        deadline = time.monotonic() + 10
        while ended(server, "cancelled") < before + 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ended(server, "cancelled") == before + 2


class _Terminal:
    """Reads what a program writes to its terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = ""

    def wait_for(self, words: str) -> None:
        """Return when `words` were written after those that were last waited for."""
        while words not in self._text:
            self._text += os.read(self._descriptor, 4096).decode(errors="replace")
        self._text = self._text.partition(words)[2]


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


def finished(arguments: Sequence[str], **options: str) -> subprocess.CompletedProcess[str]:
    """A command, in a process of its own."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


class TestProgram:
    def test_help_loads_nothing_that_takes_long(self) -> None:
        code = (
            "import sys; from orthrus_client.cli.app import app; from typer.testing import CliRunner\n"
            "for command in ([], ['embed'], ['generate'], ['chat'], ['ask'], ['index'], ['index', 'build']):\n"
            "    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0\n"
            "print(*{name.partition('.')[0] for name in sys.modules})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not {"grpc", "numpy", "tritonclient", "httpx2", "faiss", "tqdm", "torch"} & set(done.stdout.split())

    def test_nobody_there_is_said_in_one_line(self) -> None:
        done = finished(["embed", "a", "--url", "127.0.0.1:1", "--retries", "0"])
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1

    def test_certificates_and_headers_are_options(self, busy_server: RunningServer, certificates: Path) -> None:
        files = ("--client-certificate", certificates / "client.pem", "--client-key", certificates / "client.key")
        header = ("--header", "triton-grpc-protocol-x-secret=open sesame")
        trusted = ("--root-certificates", certificates / "roots.pem", *files)
        out = answered(run(busy_server, "embed", "abc", *trusted, *header))
        assert json.loads(out)["embedding"] == [3, 1, 1]
        assert "restricted" in failed(run(busy_server, "embed", "abc", *trusted))
        assert "NAME=VALUE" in failed(run(busy_server, "embed", "abc", "--header", "nothing"), 2)
        assert "go together" in failed(run(busy_server, "embed", "abc", *files[:2]))
        strange = ("--url", busy_server.grpc, "--root-certificates", str(certificates / "others.pem"), *map(str, files))
        done = finished(["embed", "abc", *strange, "--retries", "1"])
        assert done.returncode == 1
        assert "CERTIFICATE_VERIFY_FAILED" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr

    def test_retries_are_an_option(self, busy_server: RunningServer) -> None:
        http = ("--protocol", "http", "--url", busy_server.http, "--header", "x-secret=open sesame")
        assert "too much to do" in failed(run(busy_server, "generate", "busy 1 cli", *http, "--retries", 0))
        assert answered(run(busy_server, "generate", "busy 2 cli", *http)) == "asked 3 times\n"

    def test_ctrl_c_ends_a_generation_here_and_there(self, server: RunningServer) -> None:
        before = ended(server, "cancelled")
        command = [*COMMAND, "generate", "Once", "--url", server.grpc, "--max-tokens", "900", "--ignore-eos"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert b"Traceback" not in errors
        deadline = time.monotonic() + 10
        while ended(server, "cancelled") < before + 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ended(server, "cancelled") == before + 1

    def test_a_reader_that_has_enough_is_no_fault(self, server: RunningServer) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([*COMMAND, "embed", "a", "--url", server.grpc], stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert done.returncode == 1
        assert done.stderr == b""
