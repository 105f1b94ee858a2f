"""A client that does not read its stream: nobody waits for it, and what it costs is bounded by what it asked for."""

import threading
from collections.abc import Iterator

import grpc
import numpy as np
import psutil
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.test_generate import post
from tests.server.test_mixed import metric, wait_for
from tests.serving import RunningServer

REQUESTS, TOKENS = 4, 60
BYTES_PER_TOKEN = 10_000  # a response with twenty log-probabilities, held twice, and then some


def test_an_unread_stream_stalls_nobody_and_comes_whole_when_it_is_read_at_last(server: RunningServer) -> None:
    tritonserver = psutil.Process(server.pid).children()[0]
    finished = metric(server, "orthrus_requests_total", kind="generate", outcome="finished")
    before = tritonserver.memory_info().rss
    closing = threading.Event()
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        responses = stub.ModelStreamInfer(asked(closing))  # far more than the flow control of HTTP/2 lets through
        assert post(server, {"text_input": "Hi", "max_tokens": 2}).status_code == 200
        done = finished + REQUESTS + 1
        wait_for(server, "orthrus_requests_total", done, within=100, kind="generate", outcome="finished")
        assert tritonserver.memory_info().rss - before < REQUESTS * TOKENS * BYTES_PER_TOKEN + (16 << 20)
        finals: dict[str, int] = {}
        for response in responses:
            assert not response.error_message
            if response.infer_response.parameters["triton_final_response"].bool_param:
                finals[response.infer_response.id] = finals.get(response.infer_response.id, 0) + 1
            if len(finals) == REQUESTS:
                break
        closing.set()
    assert finals == {str(n): 1 for n in range(REQUESTS)}


def asked(closing: threading.Event) -> Iterator[service_pb2.ModelInferRequest]:
    """The requests of one stream, which stays open."""
    prompt = grpc_client.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"Once upon a time"], dtype=np.object_))
    flags = [grpc_client.InferInput(name, [1], "BOOL") for name in ("stream", "return_logprobs")]
    for flag in flags:
        flag.set_data_from_numpy(np.array([True]))
    for n in range(REQUESTS):
        request = service_pb2.ModelInferRequest(model_name="generate", id=str(n))
        request.parameters["max_tokens"].int64_param = TOKENS
        request.parameters["logprobs"].int64_param = 20
        request.parameters["ignore_eos"].bool_param = True
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        for tensor in (prompt, *flags):
            request.inputs.append(tensor._get_tensor())
            request.raw_input_contents.append(tensor._get_content())
        yield request
    closing.wait()
