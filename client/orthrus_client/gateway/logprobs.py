"""Log-probabilities in OpenAI's two forms. The server's is an object a token: entries by id, the chosen one first."""

from collections.abc import Mapping, Sequence
from typing import Any

from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs

TokenEntries = Mapping[str, Mapping[str, Any]]
REPLACEMENT = "\ufffd"  # stands for bytes that are no whole character


def completion_logprobs(tokens: Sequence[TokenEntries], start: int) -> Logprobs:
    """For completions; the first token begins at character `start` of the text."""
    chosen = [next(iter(entries.values())) for entries in tokens]
    texts = [entry["decoded_token"] for entry in chosen]
    return Logprobs(
        tokens=texts,
        token_logprobs=[entry["logprob"] for entry in chosen],
        top_logprobs=[{entry["decoded_token"]: entry["logprob"] for entry in entries.values()} for entries in tokens],
        text_offset=[start + sum(map(len, texts[:position])) for position in range(len(texts))],
    )


def chat_logprobs(tokens: Sequence[TokenEntries]) -> list[ChatCompletionTokenLogprob]:
    """For chats."""
    return [_chat_token(entries) for entries in tokens]


def _chat_token(entries: TokenEntries) -> ChatCompletionTokenLogprob:
    chosen = next(iter(entries.values()))
    ranked = sorted((entry for entry in entries.values() if entry["rank"]), key=lambda entry: entry["rank"])
    return ChatCompletionTokenLogprob(**_token(chosen), top_logprobs=[TopLogprob(**_token(entry)) for entry in ranked])


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    text = entry["decoded_token"]
    return {
        "token": text,
        "logprob": entry["logprob"],
        "bytes": None if REPLACEMENT in text else list(text.encode()),
    }
