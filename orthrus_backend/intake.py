"""Makes engine requests from what callers send, and refuses what the model cannot serve, before anything is queued.

Responsible for limits that depend on the model: lengths, vocabulary, adapters, prompts. Knows no tensors of any
protocol and no threads.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orthrus_backend.params import EmbeddingParams, SamplingParams
from orthrus_backend.request import EmbedRequest, GenerateRequest, TextStream
from orthrus_backend.tokenization import Tokenization
from orthrus_backend.validation import shown

DEFAULT_MAX_TOKENS = 16  # vLLM's default, or less where the prompt leaves less room
MakeText = Callable[[SamplingParams], TextStream]


class Intake:
    """Validates and tokenises. `limit`: tokens of prompt and output together; `dimensions`: the model's hidden size."""

    def __init__(
        self,
        tokenization: Tokenization,
        limit: int,
        dimensions: int,
        adapters: Collection[str],
        make_text: MakeText,
    ) -> None:
        self._tokenization = tokenization
        self._limit = limit
        self._dimensions = dimensions
        self._adapters = adapters
        self._make_text = make_text
        self._longest_token = max(map(len, tokenization.backend.get_vocab()), default=1)  # characters

    def generate(
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
        ids = self._prompt_ids(prompt)
        room = self._limit - len(ids) + 1  # the last token is produced, never computed
        max_tokens = params.max_tokens or min(DEFAULT_MAX_TOKENS, max(room, 1))
        if max_tokens > room:
            raise ValueError(
                f"a prompt of {len(ids)} tokens and max_tokens {max_tokens} "
                f"exceed the model's limit of {self._limit} tokens"
            )
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        eos = frozenset() if params.ignore_eos else self._tokenization.eos_ids
        return GenerateRequest(
            id=request_id,
            tokens=ids,
            adapter=self._adapter(params.adapter),
            arrival=time.monotonic(),
            params=params,
            prompt_length=len(ids),
            max_tokens=max_tokens,
            stop_ids=eos | frozenset(params.stop_token_ids),
            bad_words=tuple(ids for word in params.bad_words for ids in self._tokenization.word_ids(word)),
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
            ValueError: as for `generate`.
        """
        first = self.generate(prompt, params, request_id=request_id, needs_logprobs=needs_logprobs)
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

    def embed(self, text: str | Sequence[int], params: EmbeddingParams, *, request_id: str = "") -> EmbedRequest:
        """An embedding of a text or of token ids.

        Raises:
            ValueError: names the value and the limit.
        """
        if params.dimensions is not None and params.dimensions > self._dimensions:
            raise ValueError(f"dimensions {params.dimensions} is above the model's {self._dimensions}")
        ids = self._encode_embed(text, params) if isinstance(text, str) else self._checked_ids(text)
        if len(ids) > self._limit:
            if params.truncate == "error":
                raise ValueError(
                    f"the text has {len(ids)} tokens; the model's limit is {self._limit} (see truncate: end or start)"
                )
            ids = ids[: self._limit] if params.truncate == "end" else ids[-self._limit :]
        return EmbedRequest(
            id=request_id,
            tokens=ids,
            adapter=self._adapter(params.adapter),
            arrival=time.monotonic(),
            params=params,
            pooling=params.pooling or "mean",
            normalize=True if params.normalize is None else params.normalize,
        )

    def _prompt_ids(self, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> list[int]:
        if isinstance(prompt, str):
            self._check_size(prompt)
            ids = self._tokenization.encode(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            ids = self._tokenization.encode_chat(prompt)  # type: ignore[arg-type]  # messages, as the first one shows
        else:
            ids = self._checked_ids(prompt)  # type: ignore[arg-type]
        return ids

    def _encode_embed(self, text: str, params: EmbeddingParams) -> list[int]:
        if text and params.truncate == "error":
            self._check_size(text)
        elif not text:
            raise ValueError("the text is empty")
        prefix = params.instruction or ""
        if params.prompt_name is not None:
            prefix = self._tokenization.prompt(params.prompt_name)
        return self._tokenization.encode(prefix + text)

    def _check_size(self, text: str) -> None:
        """Refuse a text that must have too many tokens before any time is spent on counting them."""
        if not text:
            raise ValueError("the prompt is empty")
        if len(text) > self._limit * self._longest_token:
            raise ValueError(f"the text has {len(text)} characters; the model's limit is {self._limit} tokens")

    def _checked_ids(self, ids: Sequence[int]) -> list[int]:
        if not ids:
            raise ValueError("the prompt is empty: it has no tokens")
        self._check_ids("input_ids", ids)
        return list(ids)

    def _check_ids(self, name: str, ids: Collection[int]) -> None:
        size = self._tokenization.vocab_size
        for token in ids:
            if not 0 <= token < size:
                raise ValueError(f"{name}: token id {token} is outside the vocabulary of {size}")

    def _adapter(self, name: str | None) -> str | None:
        if name is not None and name not in self._adapters:
            raise ValueError(f"unknown adapter {shown(name)}; loaded: {', '.join(sorted(self._adapters)) or 'none'}")
        return name
