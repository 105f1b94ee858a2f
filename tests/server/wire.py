"""Sends made-up calls as they are, over each of Triton's protocols, without the checks of a client library.

Knows how answers and errors come back; judges the form of an answer (one end, nothing after it), not what is in it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import requests
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2

from tests.server.made_up import Call
from tests.server.test_ends import stub
from tests.serving import RunningServer

PATIENCE = 60.0  # seconds; a call that has no answer by then hangs
HEADER_LENGTH = "Inference-Header-Content-Length"

Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Heard:
    """All that came back: the outputs of each response, and the error that was the end, if one was."""

    responses: list[Outputs]
    status: int | grpc.StatusCode | None = None
    error: str | None = None


def unary(server: RunningServer, call: Call) -> Heard:
    """gRPC, one request and one response."""
    with stub(server) as service:
        try:
            return Heard([_arrays(service.ModelInfer(_message(call), timeout=PATIENCE))])
        except grpc.RpcError as error:
            return Heard([], error.code(), error.details())


def stream(server: RunningServer, call: Call) -> Heard:
    """A gRPC stream with this one request, which the server closes when it has answered."""
    request = _message(call)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    heard, ended = Heard([]), False
    with stub(server) as service:
        try:
            for response in service.ModelStreamInfer(iter([request]), timeout=PATIENCE):
                assert not ended, "something came after the end"
                if response.error_message:
                    heard, ended = Heard(heard.responses, None, response.error_message), True
                    continue
                heard.responses.append(_arrays(response.infer_response))
                ended = response.infer_response.parameters["triton_final_response"].bool_param
        except grpc.RpcError as error:
            return Heard(heard.responses, error.code(), error.details())
    assert ended, "the stream was closed before its end"
    return heard


def infer_json(server: RunningServer, call: Call) -> Heard:
    """HTTP, all in JSON."""
    inputs = [{"name": t.name, "datatype": t.datatype, "shape": t.shape, "data": t.data} for t in call.tensors]
    return _infer(server, call, _infer_body(call, inputs, binary=False), {})


def infer_binary(server: RunningServer, call: Call) -> Heard:
    """HTTP with the inputs' contents in binary, after the JSON."""
    inputs = [
        {"name": t.name, "datatype": t.datatype, "shape": t.shape, "parameters": {"binary_data_size": len(t.raw)}}
        for t in call.tensors
    ]
    header = _infer_body(call, inputs, binary=True)
    return _infer(server, call, header + b"".join(_contents(call)), {HEADER_LENGTH: str(len(header))})


def generate(server: RunningServer, call: Call) -> Heard:
    """HTTP's generate endpoint, where inputs and parameters stand side by side."""
    answer = _post(server, f"{call.model}/generate", _flat_body(call), {})
    return Heard([_listed(answer.json())]) if answer.ok else _refused(answer)


def generate_stream(server: RunningServer, call: Call) -> Heard:
    """HTTP's generate endpoint for streams."""
    answer = _post(server, f"{call.model}/generate_stream", _flat_body(call), {})
    events = [json.loads(line.removeprefix(b"data: ")) for line in answer.content.split(b"\n") if line]
    errors = [event["error"] for event in events if "error" in event]
    assert errors in ([], [events[-1].get("error")]), "something came after an error"
    responses = [_listed(event) for event in events if "error" not in event]
    assert errors or answer.ok, answer.text
    return Heard(responses, answer.status_code, errors[0]) if errors else Heard(responses)


Way = Callable[[RunningServer, Call], Heard]
STREAMS: tuple[Way, ...] = (stream, generate, generate_stream)  # those by which a model may answer several times
WAYS: tuple[Way, ...] = (*STREAMS, unary, infer_json, infer_binary)


def _message(call: Call) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=call.model, id=call.id)
    for name, value in call.parameters.items():
        _set(request.parameters[name], value)
    for tensor in call.tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    request.raw_input_contents.extend(_contents(call))
    for name in call.outputs:
        request.outputs.add(name=name)
    return request


def _set(parameter: service_pb2.InferParameter, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    elif value is not None:  # an entry without a value otherwise
        parameter.string_param = str(value)


def _contents(call: Call) -> list[bytes]:
    """The contents of all inputs, and one more or one less if the call is to be so."""
    contents = [tensor.raw for tensor in call.tensors]
    return contents[: call.surplus] if call.surplus < 0 else contents + [b"more"] * call.surplus


def _infer_body(call: Call, inputs: list[dict[str, Any]], binary: bool) -> bytes:
    body: dict[str, Any] = {"id": call.id, "inputs": inputs, "parameters": dict(call.parameters)}
    if call.outputs:
        body["outputs"] = [{"name": name, "parameters": {"binary_data": binary}} for name in call.outputs]
    return json.dumps(body).encode()


def _flat_body(call: Call) -> bytes:
    inputs = {t.name: t.data[0] if isinstance(t.data, list) and len(t.data) == 1 else t.data for t in call.tensors}
    return json.dumps({"id": call.id, **call.parameters, **inputs}).encode()


def _infer(server: RunningServer, call: Call, body: bytes, headers: Mapping[str, str]) -> Heard:
    answer = _post(server, f"{call.model}/infer", body, headers)
    if not answer.ok:
        return _refused(answer)
    length = answer.headers.get(HEADER_LENGTH)
    header = json.loads(answer.content[: int(length)] if length else answer.content)
    assert length or all("data" in output for output in header.get("outputs", []))
    if length:
        return Heard([_binary(header, answer.content[int(length) :])])
    return Heard([{o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in header.get("outputs", [])}])


def _binary(header: Mapping[str, Any], rest: bytes) -> Outputs:
    """Read as gRPC's contents are: the same bytes, one output after the other."""
    response = service_pb2.ModelInferResponse()
    for output in header["outputs"]:
        response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        size = output["parameters"]["binary_data_size"]
        response.raw_output_contents.append(rest[:size])
        rest = rest[size:]
    assert not rest
    return _arrays(response)


def _arrays(response: service_pb2.ModelInferResponse) -> Outputs:
    result = grpc_client.InferResult(response)
    return {output.name: result.as_numpy(output.name) for output in response.outputs}


def _listed(fields: Mapping[str, Any]) -> Outputs:
    outputs = {name: value for name, value in fields.items() if name not in ("id", "model_name", "model_version")}
    return {name: np.array(value if isinstance(value, list) else [value]) for name, value in outputs.items()}


def _post(server: RunningServer, path: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
    return requests.post(f"http://{server.http}/v2/models/{path}", data=body, headers=headers, timeout=PATIENCE)


def _refused(answer: requests.Response) -> Heard:
    return Heard([], answer.status_code, answer.json()["error"])
