"""`orthrus serve`: options, layout, and the life of the server process, with a real tritonserver."""

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from typer.testing import CliRunner

from orthrus_backend.cli import app
from orthrus_backend.default_model import EMBEDDING_ADAPTER
from orthrus_backend.serve import options
from orthrus_backend.serve.layout import fill_in, lay_out, model_repository
from orthrus_backend.serve.options import adapters_parameter, embedding_adapter_parameter, model_parameter
from orthrus_backend.serve.ports import Endpoints, choose_endpoints, exposure
from orthrus_backend.serve.server_log import ServerLog, failure
from orthrus_backend.serve.triton_binary import find_triton
from orthrus_backend.serve.workspace import SHARED_MEMORY, workspace
from tests.server.test_generate import grpc_stream, post
from tests.server.test_shutdown import Caller
from tests.serving import RunningServer, left_over, orthrus_serve, running


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of its own for each test, with a small model."""
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "tests.echo_server", str(tmp_path / "models")]
    with running(command, tmp_path / "log", temporary=tmp_path / "tmp") as server:
        yield server


def over_http(server: RunningServer) -> Callable[[Caller], object]:
    def call(caller: Caller) -> object:
        caller.started.set()
        return post(server, {"text_input": "nothing"})

    return call


def over_grpc(server: RunningServer) -> Callable[[Caller], object]:
    def call(caller: Caller) -> object:
        caller.started.set()
        return list(grpc_stream(server, text_input="nothing"))

    return call


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--token-budget", "0"], ["token_budget", "equal to 1", "0"]),
            (["--token-budget", "8", "--max-running", "9"], ["max_running 9", "token_budget 8"]),
            (["--max-model-len", "-4"], ["max_model_len", "equal to 0", "-4"]),
            (["--instances", "0"], ["--instances 0", "at least 1"]),
            (["--drain-timeout", "-1"], ["drain_timeout", "equal to 0", "-1"]),
            (["--kv-memory", "lots"], ["kv_memory", "lots"]),
            (["--policy", "lifo"], ["lifo", "ibs"]),
            (["--device", "tpu"], ["device", "tpu"]),
            (["--model", "./nowhere"], ["./nowhere", "no such folder"]),
            (["--model", "nowhere.gguf"], ["nowhere.gguf", "no such file"]),
            (["--adapter", "a=/nowhere"], ["a=/nowhere", "adapter_config.json"]),
            (["--set", "pace=9"], ["--set", "pace", "known are count_expected_output, patience"]),
            (["--set", "token_budget=9"], ["--set", "token_budget", "option of its own"]),
            (["--http-port", "70000"], ["70000", "65535"]),
            (["--http-port", "4444", "--grpc-port", "4444"], ["--grpc-port 4444", "--http-port"]),
            (["--model", __file__], [__file__, "config.json", ".gguf"]),
            (["--max-model-len", "8193"], ["--max-model-len 8193", "8192"]),
        ],
    )
    def test_a_wrong_value_is_refused_with_value_and_limit(self, options: list[str], words: list[str]) -> None:
        result = CliRunner().invoke(app, ["serve", *options], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert all(word in result.stderr for word in words), result.stderr

    def test_a_gpu_where_there_is_none_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(options, "GPU_DEVICES", ("/dev/no-gpu",))
        result = CliRunner().invoke(app, ["serve", "--device", "cuda:1"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert "--device cuda:1: there is no NVIDIA GPU" in result.stderr

    def test_a_folder_becomes_absolute_and_a_hub_id_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "config.json").write_text("{}")
        monkeypatch.chdir(tmp_path)
        assert model_parameter("--model", "m") == str(tmp_path / "m")
        assert model_parameter("--model", "owner/name") == "owner/name"
        assert model_parameter("--model", "") == ""

    def test_the_default_model_embeds_with_its_own_adapter_and_others_as_they_are(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text("{}")
        assert embedding_adapter_parameter("", "", "") == str(EMBEDDING_ADAPTER)
        assert embedding_adapter_parameter("", "/a/model", "") == "none"
        assert embedding_adapter_parameter("", "", "an/encoder") == "none"
        assert embedding_adapter_parameter("none", "", "") == "none"
        assert embedding_adapter_parameter(str(tmp_path), "/a/model", "") == str(tmp_path)
        with pytest.raises(ValueError, match=r"--embedding-adapter .*nowhere.* has no adapter_config.json"):
            embedding_adapter_parameter(str(tmp_path / "nowhere"), "", "")
        with pytest.raises(ValueError, match=r"--embedding-model 'an/encoder' embeds"):
            embedding_adapter_parameter(str(tmp_path), "", "an/encoder")

    def test_adapters_are_joined_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text("{}")
        assert adapters_parameter([f"b={tmp_path}", f"a={tmp_path}"]) == f"b={tmp_path},a={tmp_path}"


class TestPorts:
    def test_zero_gives_three_different_free_ports(self) -> None:
        addresses = choose_endpoints("127.0.0.1", http=0, grpc=0, metrics=0).as_dict()
        assert set(addresses) == {"http", "grpc", "metrics"}
        assert len(set(addresses.values())) == 3

    def test_a_taken_port_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ValueError, match=f"--grpc-port {port}: .*in use"):
                choose_endpoints("127.0.0.1", http=0, grpc=port, metrics=0)

    def test_the_same_port_twice_is_refused(self) -> None:
        port = int(choose_endpoints("127.0.0.1", http=0, grpc=0, metrics=0).http.rpartition(":")[2])
        with pytest.raises(ValueError, match="--metrics-port"):
            choose_endpoints("127.0.0.1", http=port, grpc=0, metrics=port)


class TestExposure:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost"])
    def test_loopback_is_silent(self, host: str) -> None:
        assert exposure(Endpoints(f"{host}:1", f"{host}:2", f"{host}:3")) == ""

    def test_any_other_address_is_told_with_all_that_it_opens(self) -> None:
        every_port_is_free = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
        wrong_so_that_it_does_not_start = ["--max-model-len=8193"]
        options = ["serve", "--host=0.0.0.0", *every_port_is_free, *wrong_so_that_it_does_not_start]
        result = CliRunner().invoke(app, options)
        assert result.exit_code == 2
        assert result.stderr.startswith("warning: other machines can reach 0.0.0.0, and nobody is asked for a password")
        assert all(f"{protocol}  0.0.0.0:" in result.stderr for protocol in ("http", "grpc", "metrics"))


class TestLayout:
    def test_parameters_and_instances_are_filled_in(self, tmp_path: Path) -> None:
        value = '/a "quoted" \\ path'
        layout = lay_out(tmp_path, find_triton(), {"model": value}, 3)
        config = text_format.Parse((layout.models / "orthrus" / "config.pbtxt").read_text(), ModelConfig())
        assert config.parameters["model"].string_value == value
        assert config.instance_group[0].count == 3
        assert {folder.name for folder in layout.models.iterdir()} == {"orthrus", "orthrus_embed", "embed", "generate"}

    def test_all_but_the_given_parameters_stay_as_they_are(self, tmp_path: Path) -> None:
        before = text_format.Parse((model_repository() / "orthrus" / "config.pbtxt").read_text(), ModelConfig())
        file = lay_out(tmp_path, find_triton(), {}, 1).models / "orthrus" / "config.pbtxt"
        assert text_format.Parse(file.read_text(), ModelConfig()) == before

    def test_an_unknown_parameter_is_refused(self, tmp_path: Path) -> None:
        file = lay_out(tmp_path, find_triton(), {}, 1).models / "orthrus" / "config.pbtxt"
        with pytest.raises(ValueError, match="no parameter 'pace'"):
            fill_in(file, {"pace": "9"}, 1)


class TestServerLog:
    def test_the_reason_of_a_failed_load_is_found(self) -> None:
        line = (
            "E1130 10:41:06.355068 7512 model_lifecycle.cc:642] \"failed to load 'orthrus' version 1: Internal: "
            'ValueError: patience: \\"4\\" too small\\n\\nAt:\\n  /x/model.py(7): initialize\\n"'
        )
        assert failure(line) == 'patience: "4" too small'
        other = line.replace("ValueError", "ImportError").replace('\\"', "")
        assert failure(other) == "failed to load 'orthrus' version 1: Internal: ImportError: patience: 4 too small"

    def test_what_tells_a_user_nothing_is_left_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = (
            b"Signal (15) received.\n"
            b'E1130 1 x.h:9] "[INTERNAL] HandleCancellation called even when the context was not cancelled for"\n'
            b'W1130 1 metrics.cc:798] "DCGM unable to start"\n'
            b"something else\n"
        )
        assert ServerLog(io.BytesIO(lines), gpu=False, everything=False).reasons() == []
        assert capsys.readouterr().err == "something else\n"
        assert ServerLog(io.BytesIO(lines), gpu=True, everything=True).reasons() == []
        assert capsys.readouterr().err == lines.decode()

    def test_a_failed_start_is_told_even_when_its_reason_is_not_understood(self) -> None:
        line = "error: creating server: Internal - failed to load all models"
        assert ServerLog(io.BytesIO(f"{line}\n".encode()), gpu=True, everything=False).reasons() == [line]

    def test_other_lines_are_no_reason(self) -> None:
        assert failure('W1130 10:41:06.355068 7512 metrics.cc:798] "DCGM unable to start"') == ""
        assert failure("I1130 10:41:06.355068 7512 model_lifecycle.cc:777] \"failed to load 'orthrus'\"") == ""


class TestLife:
    def test_sigterm_ends_it_cleanly_with_all_that_it_started(self, echo: RunningServer, tmp_path: Path) -> None:
        processes = echo.processes()
        assert len(processes) >= 3  # orthrus serve, tritonserver, one stub
        os.kill(echo.pid, signal.SIGTERM)
        assert echo.process.wait(15) == 0
        assert left_over(processes, within=2) == []
        assert list((tmp_path / "tmp").iterdir()) == []
        assert list(Path("/dev/shm").glob(f"orthrus-{echo.pid}-*")) == []

    def test_what_a_killed_one_leaves_is_removed_by_the_next(
        self, echo: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        processes = echo.processes()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        with workspace():
            assert all(process.is_running() for process in processes)  # nor is a living one's folder touched:
            assert len(list((tmp_path / "tmp").iterdir())) == 2
        os.kill(echo.pid, signal.SIGKILL)
        assert left_over(processes, within=15) == []
        (stale,) = (tmp_path / "tmp").iterdir()
        (SHARED_MEMORY / f"{stale.name}-region").touch()  # as a stub leaves it that is killed too
        with workspace() as folder:
            assert list((tmp_path / "tmp").iterdir()) == [folder]
        assert not list(SHARED_MEMORY.glob(f"{stale.name}-*"))

    def test_the_end_of_tritonserver_is_a_failure(self, echo: RunningServer, tmp_path: Path) -> None:
        processes = echo.processes()
        psutil.Process(echo.pid).children()[0].kill()
        assert echo.process.wait(15) == 1
        assert "ended unasked (killed by SIGKILL)" in (tmp_path / "log").read_text()
        assert left_over(processes, within=5) == []

    def test_the_end_of_a_model_process_is_a_failure_and_nobody_waits_for_it(
        self, echo: RunningServer, tmp_path: Path
    ) -> None:
        processes = echo.processes()
        callers = [Caller(call) for call in (over_http(echo), over_grpc(echo))]
        for caller in callers:
            assert caller.started.wait(10)
        time.sleep(0.5)  # for the requests to arrive
        next(process for process in processes if "stub" in process.name()).kill()
        assert echo.process.wait(15) == 1
        assert "a model process of tritonserver died" in (tmp_path / "log").read_text()
        for caller in callers:
            caller.join(5)
            assert not caller.is_alive()
            assert caller.error is not None
        assert left_over(processes, within=5) == []

    def test_a_second_signal_ends_a_slow_stop_at_once(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "tests.echo_server", str(tmp_path / "models"), "60"]
        with running(command, tmp_path / "log") as server:
            processes = server.processes()
            os.kill(server.pid, signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(1)
            os.kill(server.pid, signal.SIGINT)
            assert server.process.wait(5) == 1
            assert left_over(processes, within=2) == []

    def test_it_listens_on_loopback_only(self, echo: RunningServer) -> None:
        listening = {
            connection.laddr.ip.removeprefix("::ffff:")  # an IPv4 address on an IPv6 socket
            for process in echo.processes()
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}

    def test_a_model_that_cannot_be_loaded_is_a_failure_with_the_reason(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "no-such-family"}')
        command = orthrus_serve(f"--model={tmp_path}")
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 1
        assert result.stdout == ""
        loading, reason = result.stderr.split("\nerror: ")
        assert loading.startswith(f"Loading {tmp_path} (device: ")
        assert "\n" not in loading
        assert reason.startswith(f"model '{tmp_path}' cannot be loaded: ")
        assert "no-such-family" in reason

    def test_an_adapter_that_cannot_be_loaded_is_a_failure_with_the_reason(
        self, small_model: Path, tmp_path: Path
    ) -> None:
        adapter = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "use_dora": True}
        (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
        command = orthrus_serve(f"--model={small_model}", f"--adapter=style={tmp_path}")
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert (result.returncode, result.stdout) == (1, "")  # it never said that it is ready
        assert "use_dora" in result.stderr.splitlines()[-1]

    def test_a_stop_while_it_loads_is_no_error(self) -> None:
        process = subprocess.Popen(orthrus_serve(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Loading ")
        deadline = time.monotonic() + 20
        while not (children := psutil.Process(process.pid).children(recursive=True)) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (1, "", "Stopped before it was ready.\n")
        assert left_over(children, within=5) == []


def test_an_idle_connection_does_not_hold_up_the_end(small_model: Path, tmp_path: Path) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    with running(orthrus_serve(f"--model={small_model}"), tmp_path / "log", temporary) as server:
        processes = server.processes()
        connection = http.client.HTTPConnection(server.http)
        connection.request("GET", "/v2")
        connection.getresponse().read()
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(9) == 0, (tmp_path / "log").read_text()
        assert left_over(processes, within=2) == []
        assert list(Path("/dev/shm").glob(f"orthrus-{server.pid}-*")) == []
        assert list(temporary.iterdir()) == []


def test_a_ready_server_answers_on_the_addresses_it_printed(server: RunningServer) -> None:
    for url in (f"http://{server.http}/v2/health/ready", f"http://{server.metrics}/metrics"):
        with urllib.request.urlopen(url, timeout=5) as answer:
            assert answer.status == 200
    with socket.create_connection((server.grpc.partition(":")[0], int(server.grpc.partition(":")[2])), timeout=5):
        pass
