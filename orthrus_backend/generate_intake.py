"""Makes generations from what callers send, and refuses what the model cannot serve, before anything is queued.

Knows no tensors of any protocol and no threads.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orthrus_backend.params import SamplingParams
from orthrus_backend.prompt_checks import PromptChecks
from orthrus_backend.request import AdapterHandle, GenerateRequest, TextStream
from orthrus_backend.tokenization import Tokenization
from orthrus_backend.validation import shown

DEFAULT_MAX_TOKENS = 16  # vLLM's default, or less where the prompt leaves less room; an explicit None: all the room
MakeText = Callable[[SamplingParams], TextStream]


class GenerateIntake:
    """Validates and tokenises prompts. `limit`: tokens of prompt and output together."""

    def __init__(
        self, tokenization: Tokenization, limit: int, adapters: Mapping[str, AdapterHandle], make_text: MakeText
    ) -> None:
        self._tokenization = tokenization
        self._checks = PromptChecks(tokenization, limit, adapters)
        self._make_text = make_text

    def __call__(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        request_id: str = "",
        needs_logprobs: bool = False,
    ) -> GenerateRequest:
        """A generation from a text, from token ids, or from chat messages.

        Raises:
            ValueError: names the value and the limit.
        """
        ids = self._checks.prompt_ids(self._prompt_ids(prompt))
        room = self._checks.limit - len(ids) + 1  # the last token is produced, never computed
        most = room if "max_tokens" in params.model_fields_set else DEFAULT_MAX_TOKENS
        max_tokens = params.max_tokens or max(1, min(most, room))
        if max_tokens > room:
            raise ValueError(
                f"a prompt of {len(ids)} tokens and max_tokens {max_tokens} "
                f"exceed the model's limit of {self._checks.limit} tokens"
            )
        self._checks.ids("stop_token_ids", params.stop_token_ids)
        self._checks.ids("logit_bias", params.logit_bias)
        eos = frozenset() if params.ignore_eos else self._tokenization.eos_ids
        return GenerateRequest(
            id=request_id,
            tokens=ids,
            adapter=self._checks.adapter(params.adapter),
            arrival=time.monotonic(),
            params=params,
            prompt_length=len(ids),
            max_tokens=max_tokens,
            stop_ids=eos | frozenset(params.stop_token_ids),
            bad_words=tuple(ids for word in params.bad_words for ids in self._word_ids(word)),
            seed=secrets.randbits(64) if params.seed is None else params.seed % 2**64,
            text=self._make_text(params),
            needs_logprobs=needs_logprobs or params.logprobs is not None,
        )

    def continuations(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        request_id: str = "",
        needs_logprobs: bool = False,
    ) -> list[GenerateRequest]:
        """The `params.n` generations of one prompt, each as if it were asked for alone; the i-th has `seed + i`.

        Raises:
            ValueError: as for a single one.
        """
        first = self(prompt, params, request_id=request_id, needs_logprobs=needs_logprobs)
        others = (
            replace(
                first,
                tokens=list(first.tokens),
                blocks=[],
                seed=secrets.randbits(64) if params.seed is None else (params.seed + i) % 2**64,
                text=self._make_text(params),
            )
            for i in range(1, params.n)
        )
        return [first, *others]

    def _word_ids(self, word: str) -> list[tuple[int, ...]]:
        ids = self._tokenization.word_ids(word)
        if not ids:
            raise ValueError(f"bad_words: {shown(word)} has no tokens for this model, and so cannot be banned")
        return ids

    def _prompt_ids(self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> Sequence[int]:
        if isinstance(prompt, str):
            if not prompt:
                raise ValueError("the prompt is empty")
            self._checks.size(prompt)
            return self._tokenization.encode(prompt)
        if prompt and isinstance(prompt[0], Mapping):
            return self._chat_ids(prompt)  # type: ignore[arg-type]  # messages, as the first one shows
        return prompt  # type: ignore[return-value]  # neither text nor messages: token ids

    def _chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Ids of a conversation; one that must be too long is refused before the template is run over it."""
        if len(messages) > self._checks.limit:  # each takes a token at the least
            raise ValueError(f"{len(messages)} messages do not fit the model's limit of {self._checks.limit} tokens")
        for message in messages:
            content = message.get("content")
            if isinstance(content, str):
                self._checks.size(content)
        text = self._tokenization.chat_text(messages)
        self._checks.size(text)  # the template may have taken in more than each message's content
        return self._tokenization.encode(text, special=False)  # the special tokens are in the text
