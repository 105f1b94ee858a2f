"""Triton's services that change the server or reach into its memory are closed to everybody, on both protocols."""

from collections.abc import Callable
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.serving import RunningServer

CLOSED: dict[str, Callable[[Any], object]] = {
    "list the repository": lambda client: client.get_model_repository_index(),
    "load a model": lambda client: client.load_model("orthrus"),
    "load a model from the request": lambda client: client.load_model("x", config="{}", files={"file:1/model.py": b""}),
    "unload a model": lambda client: client.unload_model("orthrus"),
    "map system memory": lambda client: client.register_system_shared_memory("region", "/region", 8),
    "unmap all system memory": lambda client: client.unregister_system_shared_memory(),
    "see system memory": lambda client: client.get_system_shared_memory_status(),
    "map GPU memory": lambda client: client.register_cuda_shared_memory("region", b"", 0, 8),
    "read trace settings": lambda client: client.get_trace_settings(),
    "trace": lambda client: client.update_trace_settings(settings={"trace_level": ["TENSORS"]}),
    "read log settings": lambda client: client.get_log_settings(),
    "log": lambda client: client.update_log_settings({"log_verbose_level": 9}),
}


@pytest.mark.parametrize("action", CLOSED)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_nobody_can(server: RunningServer, protocol: str, action: str) -> None:
    library: Any = {"grpc": grpc_client, "http": http_client}[protocol]
    with library.InferenceServerClient(getattr(server, protocol)) as client:
        with pytest.raises(InferenceServerException, match="is restricted"):
            CLOSED[action](client)
        assert client.is_model_ready("orthrus")
