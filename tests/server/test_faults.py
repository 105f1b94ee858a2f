"""A step that fails, in a real server: everybody gets an answer, and the server ends as a failure."""

import sys
from pathlib import Path

from tests.server.test_ends import once_running
from tests.server.test_generate import grpc_arrays
from tests.server.test_shutdown import Caller, embedding, stream
from tests.serving import RunningServer, left_over, orthrus_serve, running


def failing(server: RunningServer) -> Caller:
    return Caller(lambda caller: list(grpc_arrays(server, request_id="fail", text_input="x")))


def test_a_failed_step_answers_everybody_and_ends_the_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faulty_server", str(tmp_path / "models"), *orthrus_serve("--threads=1")[2:]]
    with running(command, tmp_path / "log") as server:
        processes = server.processes()
        callers = [stream(server, 4000), stream(server, 4000, model="orthrus")]
        for caller in callers:
            assert caller.started.wait(60)
        callers.append(embedding(server, *[b"many words " * 300] * 8))
        once_running(server, "embed")
        callers.append(failing(server))
        assert server.process.wait(60) == 1
        for caller in callers:
            caller.join(10)
            assert not caller.is_alive()
            assert caller.error is not None
        told = [caller for caller in callers if "the engine failed: this step was made to fail" in str(caller.error)]
        assert told == callers
        assert "a model process of tritonserver died" in (tmp_path / "log").read_text()
        assert left_over(processes, within=5) == []
