"""Makes embeddings from what callers send, and refuses what the model cannot serve, before anything is queued.

Responsible for what the request and the model's own recipe leave to each other: prompts, pooling, truncation,
dimensions. Knows no tensors of any protocol and no threads.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Literal

from orthrus_backend.embedding_recipe import EmbeddingRecipe
from orthrus_backend.params import EmbeddingParams
from orthrus_backend.prompt_checks import PromptChecks
from orthrus_backend.request import AdapterHandle, EmbedRequest
from orthrus_backend.tokenization import Tokenization
from orthrus_backend.validation import shown


class EmbedIntake:
    """Validates and tokenises texts to embed. `hidden_size`: numbers in one hidden state."""

    def __init__(
        self,
        tokenization: Tokenization,
        recipe: EmbeddingRecipe,
        limit: int,
        hidden_size: int,
        adapters: Mapping[str, AdapterHandle],
        default_adapter: AdapterHandle | None = None,
    ) -> None:
        """`limit`: tokens of one text that the engine takes; the recipe may allow less.

        `default_adapter` is that of texts which name none.

        Raises:
            ValueError: the recipe does not fit a model of this width.
        """
        self._tokenization = tokenization
        self._recipe = recipe
        self._checks = PromptChecks(tokenization, min(limit, recipe.max_seq_length or limit), adapters, default_adapter)
        self._hidden_size = hidden_size
        self._leading_special = tokenization.leading_special()
        recipe.dimensions(hidden_size)

    def __call__(self, text: str | Sequence[int], params: EmbeddingParams, *, request_id: str = "") -> EmbedRequest:
        """An embedding of a text, or of token ids that are complete as they are.

        Raises:
            ValueError: names the value and the limit.
        """
        recipe = self._recipe
        size = recipe.dimensions(self._hidden_size, params.pooling)
        if params.dimensions is not None and params.dimensions > size:
            raise ValueError(f"dimensions {params.dimensions} is above the model's {size}")
        ids, unpooled = self._encode(text, params) if isinstance(text, str) else (self._cut(text, params), 0)
        return EmbedRequest(
            id=request_id,
            tokens=ids,
            adapter=self._checks.adapter(params.adapter),
            arrival=time.monotonic(),
            params=params,
            pooling=params.pooling or recipe.pooling,
            normalize=recipe.normalize if params.normalize is None else params.normalize,
            dimensions=params.dimensions or recipe.truncate_dim,
            unpooled=unpooled,
        )

    def _encode(self, text: str, params: EmbeddingParams) -> tuple[list[int], int]:
        """Token ids of a text behind its prompt, and how many of the first ones are not pooled."""
        if not text:
            raise ValueError("the text is empty")
        prompt = self._prompt(params)
        if params.truncate == "error":
            self._checks.size(prompt + text)
        else:
            keep_start = params.truncate == "end"
            prompt, text = self._checks.cut(prompt, keep_start), self._checks.cut(text, keep_start)
        ids = self._checks.prompt_ids(self._tokenization.encode(prompt + text))
        excess = self._excess(len(ids), params)
        if excess:
            keep: Literal["start", "end"] = "start" if params.truncate == "end" else "end"
            ids = self._tokenization.encode_cut(prompt + text, self._checks.limit, keep)
        if self._recipe.include_prompt or not prompt:
            return ids, 0
        length = self._tokenization.prompt_length(prompt)
        if length >= len(ids) + (excess if params.truncate == "start" else 0):
            raise ValueError(f"the prompt takes {length} tokens of {len(ids)} and leaves none of the text to pool")
        if params.truncate == "start":
            length = max(self._leading_special, length - excess)
        return ids, length

    def _cut(self, ids: Sequence[int], params: EmbeddingParams) -> list[int]:
        if params.prompt_name is not None or params.instruction is not None:
            raise ValueError("prompt_name and instruction go with a text, not with token ids")
        checked = self._checks.prompt_ids(ids)
        excess = self._excess(len(checked), params)
        return checked[excess:] if params.truncate == "start" else checked[: len(checked) - excess]

    def _excess(self, length: int, params: EmbeddingParams) -> int:
        """Tokens beyond the limit, where the request allows any."""
        limit = self._checks.limit
        if length > limit and params.truncate == "error":
            raise ValueError(f"the text has {length} tokens; the model's limit is {limit} (see truncate: end or start)")
        return max(0, length - limit)

    def _prompt(self, params: EmbeddingParams) -> str:
        if params.instruction is not None:
            return params.instruction
        if params.prompt_name is None:
            return self._recipe.default_prompt
        prompts = self._recipe.prompts
        if params.prompt_name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise ValueError(f"unknown prompt_name {shown(params.prompt_name)}; this model defines: {known}")
        return prompts[params.prompt_name]
