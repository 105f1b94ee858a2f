"""From OpenAI's parameters to the engine's, and which of them are refused because the engine cannot honour them."""

from collections.abc import Mapping
from typing import Any, cast

from orthrus_client import Sampling
from orthrus_client.gateway.errors import invalid
from orthrus_client.gateway.schemas import SamplingExtensions

# Mean the same to both; all others are handled by name.
_SHARED = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logit_bias", "n"),
    *SamplingExtensions.__annotations__,
)

# What the engine cannot do, and the values with which it need not.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raises `ApiError` for a parameter that would change the answer if it were honoured."""
    for name, harmless in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise invalid(f"{name} is not supported", name, "unsupported_parameter")
    if body.get("stream_options") is not None and not body.get("stream"):
        raise invalid("stream_options goes with stream: true only", "stream_options")


def sampling(body: Mapping[str, Any], **others: Any) -> Sampling:
    """The engine's sampling options of a request; of `others` those that are not None."""
    given = {name: body[name] for name in _SHARED if body.get(name) is not None}
    return cast(Sampling, given | {name: value for name, value in others.items() if value is not None})


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with the numbers of tokens."""
    return bool((body.get("stream_options") or {}).get("include_usage"))
