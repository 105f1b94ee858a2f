"""What a load test needs of whatever it measures. Knows no scenario and no particular server."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from loadtest.records import Kind


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a generated text, as it came. `tokens_in` is 0 where the server did not say it yet."""

    text: str
    tokens: int
    tokens_in: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What all targets of a comparison have in common."""

    model: Path  # a Hugging Face folder
    dtype: str
    max_model_len: int  # tokens of prompt and output together
    max_running: int  # generations at the same time
    kv_memory: int  # bytes for keys and values of generations
    logs: Path  # a folder for what servers write


class TargetError(RuntimeError):
    """A target is not installed, did not start, or gave an answer that cannot be."""


class Target(Protocol):
    """A way of serving both kinds, or one of them. Used on one event loop.

    Making one costs nothing, and raises `TargetError` where what it needs is not installed.
    """

    kinds: frozenset[Kind]

    async def start(self) -> None:
        """Get ready to answer. Raises `TargetError`."""

    async def embed(self, text: str) -> int:
        """Embed a text; the number of its tokens, as the target counts them."""

    def generate(self, prompt: str, output_tokens: int) -> AsyncGenerator[Piece]:
        """Continue a prompt greedily by exactly so many tokens. Closing it early ends the work."""

    def processes(self) -> Sequence[psutil.Process]:
        """All processes that it consists of now."""

    def versions(self) -> Mapping[str, str]:
        """Packages that matter for it, beside those of this environment."""

    async def stop(self) -> None:
        """End all of it; also after `start` failed."""


BOTH = frozenset({Kind.EMBED, Kind.GENERATE})
