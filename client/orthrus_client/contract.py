"""The server's contract: which tensors a call sends and how its answers are read. Does no I/O and knows no client.

All four transports share this file. A call is a `Tensors` (input name -> array); an answer of a generation is a
`Fields` (output name -> value), whichever protocol it came by.
"""

import json
import reprlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
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

TRACE_KEYS = ("traceparent", "tracestate")  # W3C's trace context: headers, or parameters of a request
TOKEN_IDS = "input_ids"  # an input that only the backend itself has

_MAX_TOKEN_ID = int(np.iinfo(np.int32).max)

TokenIds = Sequence[int]
Tensors = Mapping[str, NDArray[Any]]
Fields = Mapping[str, Any]


def new_request_id() -> str:
    """An id that no other request has: `stop` finds the request by it."""
    return uuid4().hex


def listed_texts(texts: str | Sequence[str] | Sequence[TokenIds]) -> list[Any]:
    """`texts`, of which a single one counts as a list of one.

    Raises:
        ValueError: there is no text, or something that is neither a text nor token ids, or both in one list.
    """
    listed: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise ValueError("texts is empty: there is nothing to embed")
    if not isinstance(listed[0], str):
        return [_ids(text) for text in listed]
    for position, text in enumerate(listed):
        if not isinstance(text, str):
            raise ValueError(f"texts[{position}] is not a str: {text!r}")
    return listed


def embed_tensors(texts: str | Sequence[str] | Sequence[TokenIds], options: EmbedOptions) -> Tensors:
    """The inputs of an embedding call. Raises what `listed_texts` raises."""
    listed = listed_texts(texts)
    if isinstance(listed[0], str):
        tensors = {"text_input": _strings(listed)}
    else:
        tensors = {"task": _strings([EMBED]), **_token_ids(listed)}
    if options:
        tensors["embedding_parameters"] = _strings([json.dumps(options)])
    return tensors


def prompt_tensors(prompt: str | TokenIds, sampling: Sampling, *, stream: bool) -> Tensors:
    """The inputs of a call that continues a text. Raises `ValueError` for anything but a text or token ids."""
    if isinstance(prompt, str):
        return {"text_input": _strings([prompt]), **_generation_tensors(sampling, stream)}
    try:
        return {**_token_ids([_ids(prompt)]), **_generation_tensors(sampling, stream)}
    except ValueError as error:
        raise ValueError(f"prompt is to be one str or a list of token ids: {error}; messages go to chat") from None


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


def one_text(sampling: Sampling) -> Sampling:
    """`sampling`, which asks for one text. Raises `ValueError` if it asks for several."""
    if sampling.get("n", 1) != 1:
        raise ValueError(f"n {sampling.get('n')}: this call makes one text; generate_n and chat_n make several")
    return sampling


def generation_model(tensors: Tensors) -> str:
    """The model that a generation is asked of: the entry point, unless the prompt is token ids."""
    return BACKEND if TOKEN_IDS in tensors else GENERATE


def stop_tensors() -> Tensors:
    """The inputs that end the request which carries the same id."""
    return {"stop": np.array([True])}


def grpc_request(
    model: str, request_id: str, tensors: Tensors, timeout: int = 0, headers: Mapping[str, str] = MappingProxyType({})
) -> service_pb2.ModelInferRequest:
    """The protobuf message of a call, for which the server has `timeout` microseconds; 0: as many as it takes.

    The trace context among `headers` is told in it too: the backend reads it there, also where Triton does not trace.
    """
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    if timeout:
        request.parameters["timeout"].int64_param = timeout
    for name in TRACE_KEYS:
        if name in headers:
            request.parameters[name].string_param = headers[name]
    for name, array in tensors.items():
        request.inputs.add(name=name, shape=array.shape, datatype=np_to_triton_dtype(array.dtype))
        is_text = array.dtype == np.object_
        request.raw_input_contents.append(serialize_byte_tensor(array).item() if is_text else array.tobytes())
    return request


def generate_json(request_id: str, tensors: Tensors, timeout: int = 0) -> dict[str, Any]:
    """The JSON body of a call to Triton's HTTP generate endpoints: every input is a scalar, but for token ids.

    `timeout` is in microseconds, as for `grpc_request`.
    """
    lists = (TOKEN_IDS, "input_lengths")
    parameters = {"timeout": timeout} if timeout else {}
    inputs = {name: array.tolist() if name in lists else array.item() for name, array in tensors.items()}
    return {"id": request_id, **parameters, **inputs}


def grpc_fields(response: service_pb2.ModelInferResponse) -> Fields:
    """The outputs of one response of a generation; those that the server left out are missing."""
    result = InferResult(response)
    arrays = {output.name: result.as_numpy(output.name) for output in response.outputs}
    values = {name: array.reshape(-1).tolist() for name, array in arrays.items() if array is not None and array.size}
    return {
        name: [item.decode() if isinstance(item, bytes) else item for item in value] for name, value in values.items()
    }


class ChunkReader:
    """Reads the responses of one generation, in order.

    A response has one entry for each of the n texts, so also for those of which nothing is new.
    """

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def read(self, fields: Fields) -> list[Chunk]:
        """What is new in a response; never empty for a single text."""
        count = len(_listed(fields.get("text_output", "")))
        chunks = [self._chunk(fields, index) for index in range(count)]
        new = [
            chunk
            for chunk in chunks
            if count == 1
            or (chunk.index not in self._ended and (chunk.text or chunk.num_output_tokens or chunk.finish_reason))
        ]
        self._ended.update(chunk.index for chunk in new if chunk.finish_reason)
        return new

    def _chunk(self, fields: Fields, index: int) -> Chunk:
        def field(name: str) -> Any:
            return _listed(fields[name])[index] if name in fields else None

        logprob, logprobs = field("cumulative_logprob"), field("logprobs")
        return Chunk(
            text=field("text_output") or "",
            finish_reason=field("finish_reason") or None,
            num_input_tokens=int(_listed(fields.get("num_input_tokens", 0))[0]),  # of the one prompt
            num_output_tokens=int(field("num_output_tokens") or 0),
            cumulative_logprob=None if logprob is None else float(logprob),
            logprobs=json.loads(logprobs) if logprobs else None,
            index=index,
        )


def read_embeddings(result: Any) -> Embeddings:
    """The answer to an embedding call, from tritonclient's `InferResult` of either protocol."""
    return Embeddings(result.as_numpy("embedding"), result.as_numpy("num_input_tokens"))


def read_embeddings_json(fields: Fields) -> Embeddings:
    """The answer to an embedding call by an HTTP generate endpoint, where a tensor is a flat list or a scalar."""
    counts = np.array(_listed(fields["num_input_tokens"]), dtype=np.uint32)
    return Embeddings(np.array(_listed(fields["embedding"]), dtype=np.float32).reshape(len(counts), -1), counts)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _ids(prompt: TokenIds) -> NDArray[np.int32]:
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise ValueError(f"{reprlib.repr(prompt)} is no list of token ids")
    if ids.min() < 0 or ids.max() > _MAX_TOKEN_ID:
        raise ValueError(f"{reprlib.repr(prompt)}: token ids are from 0 to {_MAX_TOKEN_ID}")
    return ids.astype(np.int32)


def _token_ids(prompts: Sequence[NDArray[np.int32]]) -> Tensors:
    """Prompts of token ids one after the other, and how many belong to each."""
    lengths = np.array([len(ids) for ids in prompts], dtype=np.int32)
    return {TOKEN_IDS: np.concatenate(prompts), "input_lengths": lengths}


def _strings(texts: Sequence[str]) -> NDArray[np.object_]:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # a lone surrogate, which JSON can carry
            raise ValueError(f"a text is not valid Unicode at character {error.start}") from None
    return np.array(texts, dtype=np.object_)
