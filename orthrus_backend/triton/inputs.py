"""Reads one Triton request into what the engine's intake understands. Knows the contract's names, shapes and types.

Every fault of a caller is a ValueError that names the input and the limit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from orthrus_backend.params import EmbeddingParams, SamplingParams
from orthrus_backend.request import Kind
from orthrus_backend.triton.parameters import read_keys
from orthrus_backend.validation import shown

EXTRAS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
_FOR_GENERATE = ("messages", "sampling_parameters", "max_tokens", "bad_words", "stop_words")

TokenIds = list[int]
P = TypeVar("P", SamplingParams, EmbeddingParams)
D = TypeVar("D", bool, None)


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """Asks for a continuation of `prompt`: a text, token ids, or chat messages.

    `prefix` goes before the first text of the answer; `extras` are the outputs asked for besides the text.
    """

    prompt: str | TokenIds | list[Mapping[str, Any]]
    params: SamplingParams
    stream: bool
    prefix: str
    extras: frozenset[str]

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is a conversation."""
        return not isinstance(self.prompt, str) and isinstance(self.prompt[0], Mapping)


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """Asks for one vector a text; `as_text` answers the first vector as JSON in `text_output`, with `extras` beside."""

    texts: Sequence[str | TokenIds]
    params: EmbeddingParams
    as_text: bool = False
    extras: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StopCall:
    """Asks to cancel the requests that carry the same id."""


def read_call(request: Any) -> GenerateCall | EmbedCall | StopCall:
    """What a Triton request asks for.

    Raises:
        ValueError: names the input, the value and the limit.
    """
    if _flag(request, "stop", False):
        return StopCall()
    task = _text(request, "task")
    if task not in (None, "generate", "embed"):
        raise ValueError(f"task: expected generate or embed, got {shown(task)}")
    if _tensor(request, "embedding_request") is not None:
        if task == "generate":
            raise ValueError("embedding_request does not go with task 'generate'")
        _refuse(
            request, ("text_input", "input_ids", "embedding_parameters", *_FOR_GENERATE), beside="embedding_request"
        )
        return _embedding_request(request)
    if task == "embed":
        _refuse(request, _FOR_GENERATE, beside="task 'embed'")
        texts, ids = _texts(request), _token_ids(request)
        if bool(texts) == bool(ids):
            raise ValueError("texts in text_input are needed, or token ids in input_ids; not both")
        return EmbedCall(texts or ids, _params(EmbeddingParams, request, "embedding_parameters"))
    _refuse(request, ("embedding_parameters",), beside="task 'generate'")
    return _generate(request)


def _refuse(request: Any, names: Sequence[str], beside: str) -> None:
    for name in names:
        if _tensor(request, name) is not None:
            raise ValueError(f"{name} does not go with {beside}")


def asked_kind(request: Any) -> Kind:
    """Which kind of work is asked for, as far as it can be told of a request that may be faulty."""
    embeds = _tensor(request, "embedding_request") is not None or _text(request, "task") == "embed"
    return Kind.EMBED if embeds else Kind.GENERATE


def _generate(request: Any) -> GenerateCall:
    texts, ids, messages = _texts(request), _token_ids(request), _messages(request)
    given = [prompts for prompts in (texts, ids, messages) if prompts]
    if len(given) != 1:
        raise ValueError("exactly one of text_input, messages and input_ids is needed")
    if len(given[0]) != 1:
        raise ValueError(f"one prompt is expected, got {len(given[0])}; send one request for each")
    stream = _flag(request, "stream", False)
    exclude = _flag(request, "exclude_input_in_output", None)
    if stream and exclude is False:
        raise ValueError("exclude_input_in_output: false does not go with stream: true")
    params = _params(
        SamplingParams,
        request,
        "sampling_parameters",
        max_tokens=_integer(request, "max_tokens"),
        stop=_words(request, "stop_words"),
        bad_words=_words(request, "bad_words"),
    )
    prefix = texts[0] if texts and not stream and not exclude else ""
    return GenerateCall(given[0][0], params, stream, prefix, _extras(request))


def _embedding_request(request: Any) -> EmbedCall:
    document = _text(request, "embedding_request")
    try:
        body = json.loads(document or "")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"embedding_request: not valid JSON: {error}") from error
    if not isinstance(body, dict) or "input" not in body:
        raise ValueError(f"embedding_request: a JSON object with the key input is expected, got {shown(body)}")
    given = body["input"]
    ids = isinstance(given, list) and bool(given) and all(type(token) is int for token in given)
    if not isinstance(given, str) and not ids:
        raise ValueError(f"embedding_request: input is to be a text or a list of token ids, got {shown(given)}")
    options = body.get("pooling_params", {})
    if not isinstance(options, dict):
        raise ValueError(f"embedding_request: pooling_params is to be an object, got {shown(options)}")
    dimensions = options.get("dimensions")
    if isinstance(dimensions, list) and len(dimensions) == 1:
        options = options | {"dimensions": dimensions[0]}  # that backend's form
    try:
        params = EmbeddingParams.from_mapping(options)
    except ValueError as error:
        raise ValueError(f"embedding_request: {error}") from error
    return EmbedCall([given], params, as_text=True, extras=_extras(request))


def _extras(request: Any) -> frozenset[str]:
    return frozenset(name for name in EXTRAS if _flag(request, f"return_{name}", False))


def _params(kind: type[P], request: Any, name: str, **overrides: Any) -> P:
    """Request parameters, then the JSON input, then inputs of their own: the later one wins."""
    document = _text(request, name)
    try:
        return kind.parse(document, base=read_keys(request), **overrides)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _messages(request: Any) -> list[list[Mapping[str, Any]]]:
    document = _text(request, "messages")
    if document is None:
        return []
    try:
        messages = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"messages: not valid JSON: {error}") from error
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ValueError(f"messages: a list of chat messages is expected, got {shown(messages)}")
    return [messages]


def _texts(request: Any) -> list[str]:
    tensor = _tensor(request, "text_input")
    return [] if tensor is None else [_decode("text_input", item) for item in tensor.reshape(-1)]


def _token_ids(request: Any) -> list[TokenIds]:
    """Token ids lie one sequence after the other; `input_lengths` says where each ends."""
    tensor, lengths = _tensor(request, "input_ids"), _tensor(request, "input_lengths")
    if tensor is None:
        if lengths is not None:
            raise ValueError("input_lengths without input_ids")
        return []
    ids = tensor.reshape(-1).tolist()
    if lengths is None:
        return [ids]
    ends = lengths.reshape(-1).cumsum()
    if lengths.min(initial=0) < 0 or not len(ends) or ends[-1] != len(ids):
        raise ValueError(f"input_lengths {shown(lengths.reshape(-1).tolist())} do not add up to {len(ids)} input_ids")
    return [part.tolist() for part in np.split(tensor.reshape(-1), ends[:-1])]


def _tensor(request: Any, name: str) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _one(request: Any, name: str) -> Any:
    tensor = _tensor(request, name)
    if tensor is None:
        return None
    if tensor.size != 1:
        raise ValueError(f"{name}: one value is expected, got shape {list(tensor.shape)}")
    return tensor.reshape(-1)[0]


def _text(request: Any, name: str) -> str | None:
    value = _one(request, name)
    return None if value is None else _decode(name, value)


def _words(request: Any, name: str) -> list[str] | None:
    """Words of an input that clients also send with one empty word for none."""
    tensor = _tensor(request, name)
    words = [] if tensor is None else [_decode(name, item) for item in tensor.reshape(-1)]
    return [word for word in words if word] or None


def _flag(request: Any, name: str, default: D) -> bool | D:
    value = _one(request, name)
    return default if value is None else bool(value)


def _integer(request: Any, name: str) -> int | None:
    value = _one(request, name)
    return None if value is None else int(value)


def _decode(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not valid UTF-8 at byte {error.start}") from error
