"""What leaves a step: the runner's results, and what becomes of each request through them. Values only."""

from dataclasses import dataclass
from typing import Any, ClassVar

from orthrus_backend.request import EmbedRequest, GenerateRequest, Outcome, Request, TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner computed for a plan.

    `sampled` answers `plan.samples` one by one; `pooled` answers `plan.embeds`: the pooling state to carry on, or the
    finished vector where the slice completes its text. `at_borders` answers them, too: the state at the end of the
    text's recurring beginning where the slice computes that, else None.
    """

    sampled: list[TokenLogprobs]
    pooled: list[Any]
    at_borders: list[Any]


@dataclass(frozen=True, slots=True)
class Produced:
    """A generation has one more token. `text` may be empty while it is uncertain; `outcome` is set on the last one."""

    request: GenerateRequest
    token: TokenLogprobs
    text: str
    outcome: Outcome | None

    @property
    def final(self) -> bool:
        """Whether this is the last output of its request."""
        return self.outcome is not None


@dataclass(frozen=True, slots=True)
class Embedded:
    """An embedding is done; `vector` is a float32 array [D]."""

    request: EmbedRequest
    vector: Any
    final: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Ended:
    """A request ended without a result of its own: cancelled, out of time, or failed for the reason in `message`.

    `text` is what a generation still held back of text that was certain.
    """

    request: Request
    outcome: Outcome
    message: str = ""
    text: str = ""
    final: ClassVar[bool] = True


Output = Produced | Embedded | Ended
