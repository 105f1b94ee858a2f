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

from tests.client.commands import COMMAND, GREEDY, answered, failed, run
from tests.client.test_clients import ended
from tests.reference import Reference
from tests.serving import RunningServer


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
        whole = json.loads(answered(run(server, "generate", "1, 2, 3, 4,", *GREEDY, "--json")))["text"]
        last = whole.strip()[-1]
        stopped = json.loads(answered(run(server, "generate", "1, 2, 3, 4,", "--stop", last, *GREEDY, "--json")))
        assert stopped["finish_reason"] == "stop"
        assert last not in stopped["text"]


class TestChat:
    def test_lines_of_stdin_are_turns_of_one_conversation(self, server: RunningServer, client: OrthrusClient) -> None:
        messages = [{"role": "system", "content": "Be brief."}]
        wanted = []
        for question in ("My name is Ann.", "What is my name?"):
            messages.append({"role": "user", "content": question})
            wanted.append(client.chat(messages, max_tokens=12, temperature=0).text)  # type: ignore[arg-type]  # plain dictionaries
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


def finished(arguments: Sequence[str], **options: str) -> subprocess.CompletedProcess[str]:
    """A command, in a process of its own."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]  # options of any type


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
