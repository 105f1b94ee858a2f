"""From OpenAI's chat messages to those that a chat template takes: a role and a text each."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from openai.types.chat import ChatCompletionMessageParam
from pydantic import ValidationError

from orthrus_client import Message
from orthrus_client.gateway.errors import ApiError, invalid

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_UNSUPPORTED = ("audio", "function_call", "tool_calls")


def plain_messages(messages: Sequence[ChatCompletionMessageParam]) -> list[Message]:
    """Raises `ApiError` for what is no text: tools, images, sound, files."""
    return [_plain(position, message) for position, message in enumerate(messages)]


def _plain(position: int, message: Mapping[str, Any]) -> Message:
    place, role = f"messages.{position}", message["role"]
    if role not in _ROLES:
        raise _unsupported(f"{place}.role {role!r}")
    for name in _UNSUPPORTED:
        if message.get(name) is not None:
            raise _unsupported(f"{place}.{name}")
    plain = {"role": _ROLES[role], "content": _text(place, message.get("content"))}
    return cast(Message, plain | ({"name": message["name"]} if "name" in message else {}))


def _text(place: str, content: Any) -> str:
    """A text as it is; the parts of one as lines."""
    if content is None:
        raise invalid(f"{place}.content is missing", "messages")
    if isinstance(content, str):
        return content
    texts = []
    try:
        for position, part in enumerate(content):  # pydantic checks them only now, see `schemas`
            if part["type"] != "text":
                raise _unsupported(f"{place}.content.{position} of type {part['type']!r}")
            texts.append(part["text"])
    except ValidationError as error:
        fault = error.errors()[0]
        raise invalid(f"{place}.content: {fault['msg']}, got {reprlib.repr(fault['input'])}", "messages") from None
    return "\n".join(texts)


def _unsupported(what: str) -> ApiError:
    return invalid(f"{what} is not supported", "messages", "unsupported_parameter")
