"""One request on its way through the engine: what was asked, and counters of what is done.

Progress is `computed` catching up with `total`; there are no phases. Only the scheduler changes a request after it was
submitted. Knows nothing of tensors: pooling state and text are opaque here.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from orthrus_backend.params import EmbeddingParams, PoolingMode, SamplingParams


class Kind(StrEnum):
    """The two kinds of work that share a step."""

    EMBED = "embed"
    GENERATE = "generate"


class Outcome(StrEnum):
    """How a request ended."""

    STOP = "stop"
    LENGTH = "length"
    EMBEDDED = "embedded"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    FAILED = "failed"


class AdapterHandle(Protocol):
    """A loaded adapter, as opaque here as text is: a request holds the version that it was accepted with."""

    @property
    def name(self) -> str:
        """What requests call it."""

    @property
    def serial(self) -> int:
        """A number that no other version of any adapter has had."""


class TextStream(Protocol):
    """Turns token ids into text that never has to be taken back."""

    def append(self, token: int) -> tuple[str, bool]:
        """Add one token; returns the text that is now certain and whether a stop string was completed."""

    def finish(self) -> str:
        """The text still held back, when no further token comes."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a chosen token, and of the likeliest `top` ones as (id, log-probability), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class Request:
    """State that both kinds share.

    `tokens` are all ids known so far (prompt, then output); keys and values of the first `computed` of them are done
    and lie in `blocks`. `arrival` and `deadline` are seconds of `time.monotonic`.
    """

    id: str  # the caller's own; several requests may carry the same
    tokens: list[int]
    adapter: AdapterHandle | None
    arrival: float
    deadline: float | None = None
    order: int = -1  # place in the order of arrival, given by the scheduler
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    linked: int = 0  # blocks that the prefix cache knows, ...
    link: int | None = None  # ... and where it goes on from them
    first_scheduled: float | None = None
    outcome: Outcome | None = None
    call: str = ""  # an id that only the requests of one call carry, where the one who passed it on gave it one
    reply: Any = None  # where the answer goes; only the engine's owner looks at it

    @property
    def kind(self) -> Kind:
        raise NotImplementedError  # each kind names itself

    @property
    def adapter_key(self) -> tuple[str, int]:
        """Equal for requests whose rows one adapter works on together; the base model's comes first."""
        return ("", -1) if self.adapter is None else (self.adapter.name, self.adapter.serial)

    @property
    def total(self) -> int:
        """Tokens that must be computed before the next one is known or the embedding is done."""
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Tokens still to be computed."""
        return len(self.tokens) - self.computed

    def restart(self) -> None:
        """Forget all progress except tokens already produced; the caller has taken back the blocks."""
        assert not self.blocks
        self.computed = self.linked = 0
        self.link = None


@dataclass(slots=True, eq=False)
class EmbedRequest(Request):
    """A text to be pooled into one vector.

    `pooling`, `normalize` and `dimensions` are resolved; the first `unpooled` rows do not count. `pool` is what the
    pooler carries between chunks. The first `recurring` tokens are worth keeping for texts that begin with them, too.
    """

    params: EmbeddingParams = field(default_factory=EmbeddingParams)
    pooling: tuple[PoolingMode, ...] = ("mean",)
    normalize: bool = True
    dimensions: int | None = None
    unpooled: int = 0
    pool: Any = None
    recurring: int = 0

    @property
    def kind(self) -> Kind:
        return Kind.EMBED

    @property
    def pooling_key(self) -> tuple[tuple[PoolingMode, ...], int]:
        """Equal for texts whose pooling state is the same behind the same tokens."""
        return self.pooling, self.unpooled

    def restart(self) -> None:
        Request.restart(self)
        self.pool = None
        self.recurring = 0


@dataclass(slots=True, eq=False)
class GenerateRequest(Request):
    """A prompt to be continued.

    `max_tokens` is resolved, `stop_ids` are the end-of-sequence ids (unless ignored) and the caller's stop ids,
    `seed` keys the random numbers of every position.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    prompt_length: int = 0
    max_tokens: int = 16
    stop_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    text: TextStream | None = None
    needs_logprobs: bool = False
    cumulative_logprob: float = 0.0
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def kind(self) -> Kind:
        return Kind.GENERATE

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_length
