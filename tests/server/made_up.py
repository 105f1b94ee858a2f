"""Calls that somebody might send to Triton, from nearly right ones to noise, as strategies of hypothesis.

Knows the names and types of the contract's inputs; knows no protocol and nothing of what the server makes of them.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from orthrus_backend.params import EmbeddingParams, SamplingParams

MODELS = ("generate", "embed", "orthrus", "orthrus_embed")
OUTPUTS = ("text_output", "finish_reason", "logprobs", "embedding", "num_input_tokens")
BRIEF = 300_000  # microseconds: a request that is right is not to compute for long


@dataclass(frozen=True, slots=True)
class MadeUpTensor:
    """An input. `data` is its content as JSON tells it, `raw` as it is on the wire; they need not agree."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any
    raw: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `surplus` is added to its contents, or taken away from them: one too many, or one too few."""

    model: str
    id: str
    tensors: tuple[MadeUpTensor, ...]
    parameters: Mapping[str, Any]
    outputs: tuple[str, ...]
    surplus: int


TEXTS = st.sampled_from(["Hi", "The capital of France is", "", " ", "a\0b", "\u200b", "word " * 1100]) | st.text()
BYTES = st.one_of(TEXTS.map(str.encode), st.binary())
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 0.5, -1, 1e-320, 1e308, 2**31, 2**63, 2**64, 10**30]),
    st.sampled_from(["1", "0.5", "-1", "1e999", "nan", "9" * 5000, float("nan"), float("inf")]),
    st.integers(),
    st.floats(),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.none(), st.booleans())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=8
)
DEEP = st.integers(1, 1100).map(lambda depth: "[" * depth + "]" * depth)
JSON = st.one_of(VALUES.map(json.dumps), DEEP, st.sampled_from(['"\\ud800"', "[[5]]", "[5]", '{"5": 1}', '["x"]']))


def _seldom(odd: st.SearchStrategy[Any], usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One of eight is odd: what is wrong in everything is refused for its first fault."""
    return st.integers(0, 7).flatmap(lambda number: odd if number == 7 else usual)


def documents(*keys: str) -> st.SearchStrategy[str]:
    """JSON objects with some of these keys, mostly; the rest is other JSON, or none at all."""
    objects = st.dictionaries(st.sampled_from(keys) | TEXTS, JSON, max_size=3).map(_object)
    return _seldom(JSON | TEXTS, objects)


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members.items()) + "}"


_MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "boss"]), "content": TEXTS}).map(json.dumps),
    documents("role", "content", "tool_calls"),
)
_MESSAGES = _seldom(JSON | TEXTS, st.lists(_MESSAGE, min_size=1, max_size=3).map(lambda each: f"[{', '.join(each)}]"))


def _one(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=1)


_SAMPLING = documents(*SamplingParams.model_fields, "lora_name").map(str.encode)
_EMBEDDING = documents(*EmbeddingParams.model_fields).map(str.encode)
_EMBEDDING_REQUEST = documents("input", "pooling_params").map(str.encode)
_INTEGERS = st.integers(-(2**31), 2**31 - 1)
_FLAG = _one(st.booleans())
_WORDS = st.lists(BYTES, max_size=3)
_FLAGS = (
    "stream",
    "exclude_input_in_output",
    "stop",
    *(
        f"return_{name}"
        for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    ),
)

# Of each input of the contract: its type, and what a caller might put into it.
INPUTS: Mapping[str, tuple[str, st.SearchStrategy[list[Any]]]] = {
    "text_input": ("BYTES", _one(BYTES) | st.lists(BYTES, max_size=3)),
    "input_text": ("BYTES", st.lists(BYTES, max_size=3)),
    "messages": ("BYTES", _one(_MESSAGES.map(str.encode))),
    "task": ("BYTES", _one(st.sampled_from([b"embed", b"generate"]) | BYTES)),
    "sampling_parameters": ("BYTES", _one(_SAMPLING)),
    "embedding_parameters": ("BYTES", _one(_EMBEDDING)),
    "embedding_request": ("BYTES", _one(_EMBEDDING_REQUEST)),
    "stop_words": ("BYTES", _WORDS),
    "bad_words": ("BYTES", _WORDS),
    "input_ids": ("INT32", st.lists(st.integers(0, 49151) | _INTEGERS, max_size=4)),
    "input_lengths": ("INT32", st.lists(st.integers(0, 3) | _INTEGERS, max_size=3)),
    "max_tokens": ("INT32", _one(st.integers(1, 3) | _INTEGERS)),
    **dict.fromkeys(_FLAGS, ("BOOL", _FLAG)),
}  # fmt: skip

_DTYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_ODD_SHAPES: list[tuple[int, ...]] = [
    *[(), (0,), (1, 1), (2,), (1, 0), (-1,), (1,) * 9],
    *[(2**31,), (2**31, 2), (2**62,), (2**62, 4), (2**32, 2**32), (-(2**63),), (2**63 - 1,)],
]


@st.composite
def made_up_tensors(draw: st.DrawFn, name: str) -> MadeUpTensor:
    """An input of this name: most are as the contract has them, but for their values."""
    datatype, contents = INPUTS.get(name, ("BYTES", _one(BYTES)))
    values = draw(contents)
    tensor = MadeUpTensor(name, datatype, (len(values),), _as_json(values), _as_raw(datatype, values))
    spoil = draw(_seldom(st.sampled_from([_other_shape, _other_type, _other_content]), st.none()))
    return spoil(draw, tensor) if spoil else tensor


def _other_shape(draw: st.DrawFn, tensor: MadeUpTensor) -> MadeUpTensor:
    return replace(tensor, shape=draw(st.sampled_from(_ODD_SHAPES)))


def _other_type(draw: st.DrawFn, tensor: MadeUpTensor) -> MadeUpTensor:
    datatype = draw(st.sampled_from([*_DTYPES, "BYTES", "BF16", "", "STRING"]))
    raw = np.ones(1, _DTYPES[datatype]).tobytes() if datatype in _DTYPES else tensor.raw
    return replace(tensor, datatype=datatype, raw=raw)


def _other_content(draw: st.DrawFn, tensor: MadeUpTensor) -> MadeUpTensor:
    length = struct.pack("<I", draw(st.sampled_from([0, 1, 5, 2**31, 2**32 - 1])))
    raw = draw(
        st.sampled_from(
            [b"", tensor.raw[:-1], tensor.raw[:2], tensor.raw * 2, length + tensor.raw, length + tensor.raw[4:]]
        )
    )
    return replace(tensor, raw=raw, data=draw(VALUES | st.lists(VALUES, max_size=3)))


def _as_json(values: Sequence[Any]) -> list[Any]:
    return [value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for value in values]


def _as_raw(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return np.array(values, _DTYPES[datatype]).tobytes()


_EMBED = ("text_input", "input_text", "embedding_parameters")
_DIRECT = ("task", "input_ids", "input_lengths", "embedding_parameters", "embedding_request", "stop")
_BEGINNINGS: Mapping[str, list[tuple[str, ...]]] = {
    "generate": [("text_input",), ("text_input", "sampling_parameters"), ("messages",)],
    "embed": [("text_input",), ("text_input", "embedding_parameters"), ("input_text",)],
    "orthrus": [("text_input",), ("messages",), ("input_ids",), ("task", "text_input"), ("embedding_request",)],
}
_TAKEN: Mapping[str, list[str]] = {
    "generate": [name for name in INPUTS if name not in (*_DIRECT, "input_text")],
    "embed": list(_EMBED),
    "orthrus": [name for name in INPUTS if name != "input_text"],
}
_KEYS = st.sampled_from([*SamplingParams.model_fields, *EmbeddingParams.model_fields, "traceparent", "tracestate"])
_TIMES = st.sampled_from([-1, "soon", True, 2.5, 2**63 - 1, "9" * 400, "9" * 5000, ""])


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A request with some inputs that go together and some that may not."""
    model = draw(st.sampled_from(MODELS))
    entry = "embed" if model == "orthrus_embed" else model
    names = [*draw(st.sampled_from(_BEGINNINGS[entry])), *draw(st.lists(st.sampled_from(_TAKEN[entry]), max_size=2))]
    names += draw(
        _seldom(st.lists(st.sampled_from([*INPUTS, "INPUT0"]) | st.text(max_size=8), max_size=2), st.just([]))
    )
    names = draw(_seldom(st.permutations(names).map(lambda mixed: mixed[1:]), st.just(names)))
    return Call(
        model=model,
        id=draw(st.sampled_from(["", "mine"]) | st.text(max_size=8)),
        tensors=tuple(draw(made_up_tensors(name)) for name in dict.fromkeys(names)),
        parameters={"timeout": draw(_seldom(_TIMES, st.just(BRIEF)))}
        | draw(_seldom(st.dictionaries(_KEYS | TEXTS, SCALARS, max_size=2), st.just({}))),
        outputs=draw(
            _seldom(st.lists(st.sampled_from(OUTPUTS) | st.text(max_size=8), max_size=2).map(tuple), st.just(()))
        ),
        surplus=draw(_seldom(st.sampled_from([-1, 1]), st.just(0))),
    )
