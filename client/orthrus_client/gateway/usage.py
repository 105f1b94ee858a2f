"""How answers end: why, and what they cost."""

from collections.abc import Sequence
from typing import Literal

from openai.types import CompletionUsage

from orthrus_client import Chunk, DeadlineExceeded, Generation, OrthrusError, Unavailable


def finish_reason(reason: str | None) -> Literal["stop", "length"]:
    """The engine's reason as OpenAI's. Raises `OrthrusError` for an answer that did not come to its end."""
    match reason:
        case "stop" | "length":
            return reason
        case "timeout":
            raise DeadlineExceeded("the server's time for one request has passed")
        case "cancelled":
            raise Unavailable("the server gave the request up")
    raise OrthrusError(f"the server ended an answer for the reason {reason!r}")


def usage(prompt: int, completion: int) -> CompletionUsage:
    """Numbers of tokens."""
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def total_usage(answers: Sequence[Sequence[Generation]]) -> CompletionUsage:
    """Of the n texts of each prompt, which counts once."""
    return usage(
        sum(texts[0].num_input_tokens for texts in answers),
        sum(text.num_output_tokens for texts in answers for text in texts),
    )


class Meter:
    """Counts the tokens of a stream."""

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        self._completion = 0

    def add(self, prompt: int, chunk: Chunk) -> None:
        """Count a piece of a text that follows the prompt of this number."""
        self._prompts[prompt] = chunk.num_input_tokens
        self._completion += chunk.num_output_tokens

    def read(self) -> CompletionUsage:
        """What was counted so far."""
        return usage(sum(self._prompts.values()), self._completion)
