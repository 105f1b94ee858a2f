"""The server's contract: which tensors a call sends and how its answers are read. Does no I/O and knows no client.

All four transports share this file. A call is a `Tensors` (input name -> array); an answer of a generation is a
`Fields` (output name -> value), whichever protocol it came by.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from orthrus_client.options import EmbedOptions, Message, Sampling
from orthrus_client.results import Chunk, Embeddings

EMBED = "embed"  # the entry points of the model repository ...
GENERATE = "generate"
BACKEND = "orthrus"  # ... and the backend behind both, which alone knows `stop`

Tensors = Mapping[str, NDArray[Any]]
Fields = Mapping[str, Any]


def new_request_id() -> str:
    """An id that no other request has: `stop` finds the request by it."""
    return uuid4().hex


def listed_texts(texts: str | Sequence[str]) -> list[str]:
    """`texts`, of which a single one counts as a list of one.

    Raises:
        ValueError: there is no text, or something that is not a text.
    """
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise ValueError("texts is empty: there is nothing to embed")
    for position, text in enumerate(listed):
        if not isinstance(text, str):
            raise ValueError(f"texts[{position}] is not a str: {text!r}")
    return listed


def embed_tensors(texts: str | Sequence[str], options: EmbedOptions) -> Tensors:
    """The inputs of an embedding call. Raises what `listed_texts` raises."""
    tensors = {"text_input": _strings(listed_texts(texts))}
    if options:
        tensors["embedding_parameters"] = _strings([json.dumps(options)])
    return tensors


def prompt_tensors(prompt: str, sampling: Sampling, *, stream: bool) -> Tensors:
    """The inputs of a call that continues a text. Raises `ValueError` for anything but a text."""
    if not isinstance(prompt, str):
        raise ValueError(f"prompt is to be one str, not {prompt!r}; messages go to chat")
    return {"text_input": _strings([prompt]), **_generation_tensors(sampling, stream)}


def chat_tensors(messages: Sequence[Message], sampling: Sampling, *, stream: bool) -> Tensors:
    """The inputs of a call that answers a chat. Raises `ValueError` for anything but a list of messages."""
    if not messages or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise ValueError(f"messages are to be a list of {{'role': ..., 'content': ...}}, not {messages!r}")
    return {"messages": _strings([json.dumps(list(messages))]), **_generation_tensors(sampling, stream)}


def _generation_tensors(sampling: Sampling, stream: bool) -> Tensors:
    flags = ["return_finish_reason", "return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output"]
    if "logprobs" in sampling:
        flags += ["return_logprobs", "return_cumulative_logprob"]
    return {
        "sampling_parameters": _strings([json.dumps(sampling)]),
        "stream": np.array([stream]),
        **{flag: np.array([True]) for flag in flags},
    }


def stop_tensors() -> Tensors:
    """The inputs that end the request which carries the same id."""
    return {"stop": np.array([True])}


def grpc_request(model: str, request_id: str, tensors: Tensors) -> service_pb2.ModelInferRequest:
    """The protobuf message of a call."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in tensors.items():
        request.inputs.add(name=name, shape=array.shape, datatype=np_to_triton_dtype(array.dtype))
        is_text = array.dtype == np.object_
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if is_text else array.tobytes())
    return request


def generate_json(request_id: str, tensors: Tensors) -> dict[str, Any]:
    """The JSON body of a call to Triton's HTTP generate endpoints, where every input is a scalar."""
    return {"id": request_id, **{name: array.item() for name, array in tensors.items()}}


def grpc_fields(response: service_pb2.ModelInferResponse) -> Fields:
    """The outputs of one response of a generation; those that the server left out are missing."""
    result = InferResult(response)
    arrays = {output.name: result.as_numpy(output.name) for output in response.outputs}
    values = {name: array.flat[0] for name, array in arrays.items() if array is not None and array.size}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def read_chunk(fields: Fields) -> Chunk:
    """One response of a generation."""
    logprob, logprobs = fields.get("cumulative_logprob"), fields.get("logprobs")
    return Chunk(
        text=fields.get("text_output", ""),
        finish_reason=fields.get("finish_reason") or None,
        num_input_tokens=int(fields.get("num_input_tokens", 0)),
        num_output_tokens=int(fields.get("num_output_tokens", 0)),
        cumulative_logprob=None if logprob is None else float(logprob),
        logprobs=json.loads(logprobs) if logprobs else None,
    )


def read_embeddings(result: Any) -> Embeddings:
    """The answer to an embedding call, from tritonclient's `InferResult` of either protocol."""
    return Embeddings(result.as_numpy("embedding"), result.as_numpy("num_input_tokens"))


def _strings(texts: Sequence[str]) -> NDArray[np.object_]:
    return np.array(texts, dtype=np.object_)
