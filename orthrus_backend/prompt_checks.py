"""What both kinds of requests are checked for before anything is queued: lengths, token ids, adapters.

Knows nothing of sampling, pooling or protocols.
"""

from collections.abc import Collection, Mapping, Sequence

from orthrus_backend.request import AdapterHandle
from orthrus_backend.tokenization import Tokenization
from orthrus_backend.validation import shown

_SLACK = 64  # tokens: where a text is cut, its last or first ones may be others than in the whole text


class PromptChecks:
    """Limits of one served model. `limit`: tokens of one request. `default`: the adapter of those that name none."""

    def __init__(
        self,
        tokenization: Tokenization,
        limit: int,
        adapters: Mapping[str, AdapterHandle],
        default: AdapterHandle | None = None,
    ) -> None:
        self.limit = limit
        self._vocab_size = tokenization.vocab_size
        self._adapters = adapters
        self._default = default
        self._longest_token = max(map(len, tokenization.backend.get_vocab()), default=1)  # characters

    def size(self, text: str) -> None:
        """Refuse a text that must have too many tokens before any time is spent on counting them."""
        if len(text) > self.limit * self._longest_token:
            raise ValueError(f"the text has {len(text)} characters; the model's limit is {self.limit} tokens")

    def cut(self, text: str, keep_start: bool) -> str:
        """A text without what lies so far beyond the limit that it cannot matter; what is left is still too long."""
        most = (self.limit + _SLACK) * self._longest_token
        return text[:most] if keep_start else text[-most:]

    def ids(self, name: str, ids: Collection[int]) -> None:
        """Refuse token ids that mean nothing to the model."""
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"{name}: token id {token} is outside the vocabulary of {self._vocab_size}")

    def prompt_ids(self, ids: Sequence[int]) -> list[int]:
        """A prompt that came as token ids."""
        if not ids:
            raise ValueError("the prompt is empty: it has no tokens")
        self.ids("input_ids", ids)
        return list(ids)

    def adapter(self, name: str | None) -> AdapterHandle | None:
        """A loaded adapter, or None for the base model, which an empty name asks for."""
        if name is None:
            return self._default
        if not name:
            return None
        adapter = self._adapters.get(name)
        if adapter is None:
            raise ValueError(f"unknown adapter {shown(name)}; loaded: {', '.join(sorted(self._adapters)) or 'none'}")
        return adapter
