"""What a call answers with. Knows nothing of tensors, JSON or protocols."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Embeddings:
    """N vectors and what they cost."""

    vectors: NDArray[np.float32]  # [N, D]
    num_input_tokens: NDArray[np.uint32]  # [N]

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All vectors of `parts`, in order."""
        return cls(
            vectors=np.concatenate([part.vectors for part in parts]),
            num_input_tokens=np.concatenate([part.num_input_tokens for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a generated text, as the server sent it."""

    text: str
    finish_reason: str | None  # stop | length | cancelled | timeout; None before the last chunk
    num_input_tokens: int
    num_output_tokens: int  # of this chunk
    cumulative_logprob: float | None = None
    logprobs: list[Any] | None = None
    index: int = 0  # which of the n texts it belongs to


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole generated text."""

    text: str
    finish_reason: str | None  # None only if the server ended the answer without saying why
    num_input_tokens: int
    num_output_tokens: int
    cumulative_logprob: float | None = None
    logprobs: list[Any] | None = None

    @classmethod
    def join(cls, chunks: Iterable[Chunk]) -> Self:
        """The text that `chunks`, in order, are the pieces of."""
        parts = list(chunks)
        logprobs = [entry for part in parts for entry in part.logprobs or ()]
        return cls(
            text="".join(part.text for part in parts),
            finish_reason=next((part.finish_reason for part in reversed(parts) if part.finish_reason), None),
            num_input_tokens=max((part.num_input_tokens for part in parts), default=0),
            num_output_tokens=sum(part.num_output_tokens for part in parts),
            cumulative_logprob=parts[-1].cumulative_logprob if parts else None,
            logprobs=logprobs or None,
        )

    @classmethod
    def join_each(cls, chunks: Iterable[Chunk]) -> list[Self]:
        """The n texts that `chunks` are the pieces of, in their order."""
        parts: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            parts.setdefault(chunk.index, []).append(chunk)
        return [cls.join(parts[index]) for index in sorted(parts)]
