"""What a caller may ask for: everything outside its range is refused by name, and nothing unknown is taken."""

import json
import math
from typing import Any

import pytest

from orthrus_backend.params import EmbeddingParams, SamplingParams

SAMPLING_FAULTS: list[tuple[str, Any]] = [
    *[("max_tokens", value) for value in (0, -1, 1.5, "many", True)],
    *[("min_tokens", value) for value in (-1, "x")],
    *[("temperature", value) for value in (-0.1, 101, math.nan, math.inf, "warm", True)],
    *[("top_p", value) for value in (0, -0.5, 1.01, math.nan)],
    *[("top_k", value) for value in (-2, 0.5)],
    *[("min_p", value) for value in (-0.1, 1.1)],
    *[("seed", value) for value in (2**64, -(2**63) - 1, "x", False)],
    *[("n", value) for value in (0, -1, 17)],
    *[("stop", value) for value in ([""], "", ["x"] * 17, 3)],
    *[("stop_token_ids", value) for value in ([-1], 3, ["x"], [1] * 1025)],
    *[("repetition_penalty", value) for value in (0, -1, 101, math.inf)],
    *[(name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2.1, 2.1, math.nan)],
    *[("logit_bias", value) for value in ({"3": 101}, {"3": -101}, {"x": 1}, [1], dict.fromkeys(range(1025), 1))],
    *[("bad_words", value) for value in ([""], 3, ["x"] * 129, ["x" * 1001])],
    *[("logprobs", value) for value in (-1, 21)],
    ("adapter", 3),
    *[("include_stop_str_in_output", "perhaps"), ("ignore_eos", 7), ("no_such_key", 1)],
]
EMBEDDING_FAULTS: list[tuple[str, Any]] = [
    *[("dimensions", value) for value in (0, -1, 1.5, True)],
    *[("pooling", value) for value in ("median", [], ["mean"] * 7)],
    *[("truncate", "middle"), ("normalize", "perhaps"), ("adapter", 3), ("no_such_key", 1)],
]

EDGES: list[dict[str, Any]] = [
    {
        "n": 16,
        "temperature": 100,
        "min_p": 1,
        "logprobs": 20,
        "seed": 2**64 - 1,
        "repetition_penalty": 100,
        "presence_penalty": -2,
        "frequency_penalty": -2,
        "stop": ("x" * 1000,) * 16,
        "bad_words": ("x",) * 128,
        "stop_token_ids": (0,) * 1024,
        "logit_bias": dict.fromkeys(range(1024), 100),
    },
    {
        "min_tokens": 0,
        "top_p": 1e-6,
        "logprobs": 0,
        "seed": -(2**63),
        "repetition_penalty": 1e-6,
        "presence_penalty": 2,
        "frequency_penalty": 2,
        "logit_bias": {0: -100},
    },
]


@pytest.mark.parametrize(("key", "value"), SAMPLING_FAULTS)
def test_sampling_out_of_range_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        SamplingParams.from_mapping({key: value})


@pytest.mark.parametrize(("key", "value"), EMBEDDING_FAULTS)
def test_embedding_out_of_range_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        EmbeddingParams.from_mapping({key: value})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"temperature": -1}, r"temperature: .*0.* \(got -1\)"),
        ({"top_p": 2}, r"top_p: .*1 \(got 2\)"),
        ({"n": 17}, r"n: .*16 \(got 17\)"),
        ({"n": 2, "temperature": 0}, "n 2 with temperature 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is above max_tokens 4"),
        ({"adapter": "a", "lora_name": "b"}, "adapter and its alias lora_name"),
    ],
)
def test_the_message_has_key_value_and_limit(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SamplingParams.from_mapping(keys)


def test_numbers_may_come_as_text_and_the_edges_are_inside() -> None:
    text = {"max_tokens": "1", "temperature": "0", "top_p": "1", "top_k": "-1", "min_p": "0", "seed": "7", "n": "1"}
    assert SamplingParams.parse(json.dumps(text)) == SamplingParams(
        max_tokens=1, temperature=0, top_p=1, top_k=-1, min_p=0, seed=7
    )
    for edges in EDGES:
        assert SamplingParams.from_mapping(edges).model_dump(include=edges.keys()) == edges
    for modes in (("last",), ("mean",) * 6):
        assert EmbeddingParams(pooling=modes, dimensions=1, adapter="a").pooling == modes
    assert SamplingParams.from_mapping({"lora_name": "a"}).adapter == "a"
