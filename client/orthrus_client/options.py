"""What a caller may ask for, by name. Types only: the server checks the values and names the one that is wrong."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

Protocol = Literal["grpc", "http"]
RETRIES = 3  # of a call that found the server unavailable


class Message(TypedDict):
    """One turn of a chat."""

    role: str  # system | user | assistant, as far as the model's chat template knows them
    content: str
    name: NotRequired[str]  # of the participant, for templates that tell several apart


Pooling = Literal["mean", "mean_sqrt_len", "weighted_mean", "max", "cls", "last"]
Truncate = Literal["error", "start", "end"]


class EmbedOptions(TypedDict, total=False):
    """Options of an embedding; what is left out is the model's own default."""

    pooling: Pooling
    normalize: bool
    dimensions: int  # the first so many dimensions only
    prompt_name: str  # one of the prompts that the model's files define
    instruction: str
    truncate: Truncate
    adapter: str  # empty: none, not even the one that the server embeds with by default


class Sampling(TypedDict, total=False):
    """Options of a generation."""

    max_tokens: int | None  # None: as many as the model's limit leaves room for
    min_tokens: int
    temperature: float  # 0 is greedy
    top_p: float
    top_k: int
    min_p: float
    seed: int
    n: int  # so many texts, each drawn for itself: for `generate_n`, `chat_n` and streams
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float]
    bad_words: Sequence[str]
    logprobs: int  # how many alternatives per token; also brings `cumulative_logprob`
    adapter: str
