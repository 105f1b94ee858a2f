"""What requests may hold: the `openai` package's own parameters, and what the engine takes beyond them.

The package types arrays as `Iterable`, which pydantic checks only while somebody iterates; here they are lists with
limits, checked at once. A field that is in none of these types is refused by name.
"""

from typing import Annotated, Any

from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.chat.completion_create_params import Function
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, with_config
from typing_extensions import Required, TypedDict  # noqa: UP035  # pydantic needs these on Python 3.11

MAX_INPUTS = 2048  # texts to embed at once, OpenAI's own limit
MAX_PROMPTS = 128  # each is a call of its own to the server

STRICT = ConfigDict(extra="forbid", strict=True)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON can carry
        raise ValueError(f"not valid Unicode at character {error.start}") from None
    return text


def _without_nulls(value: Any) -> Any:
    """Null means the same as nothing, also where OpenAI's types have no null."""
    return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


Text = Annotated[str, AfterValidator(_encodable)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
Prompt = Text | TokenIds
_SomePrompts = Field(min_length=1, max_length=MAX_PROMPTS)
Prompts = Annotated[list[Text], _SomePrompts] | Annotated[list[TokenIds], _SomePrompts]
_SomeInputs = Field(min_length=1, max_length=MAX_INPUTS)
Inputs = Annotated[list[Text], _SomeInputs] | Annotated[list[TokenIds], _SomeInputs]
ChatMessage = Annotated[ChatCompletionMessageParam, BeforeValidator(_without_nulls)]


class SamplingExtensions(TypedDict, total=False):
    """Sampling beyond OpenAI's parameters, as `orthrus_client.Sampling` names it. The server checks the values."""

    min_tokens: int
    top_k: int
    min_p: float
    stop_token_ids: list[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    repetition_penalty: float
    bad_words: list[str]


@with_config(STRICT)
class CompletionRequest(CompletionParams, SamplingExtensions, total=False):
    """The body of /v1/completions."""

    prompt: Required[Prompt | Prompts]  # type: ignore[misc]  # narrower than the package's, see above
    stream: bool | None


@with_config(STRICT)
class ChatRequest(ChatParams, SamplingExtensions, total=False):
    """The body of /v1/chat/completions."""

    messages: Required[Annotated[list[ChatMessage], Field(min_length=1)]]  # type: ignore[misc]  # narrower, too
    functions: list[Function]  # type: ignore[misc]  # narrower, too
    tools: list[ChatCompletionToolUnionParam]  # type: ignore[misc]  # narrower, too
    stream: bool | None


@with_config(STRICT)
class EmbeddingRequest(EmbeddingCreateParams, total=False):
    """The body of /v1/embeddings; beyond OpenAI's, options as `orthrus_client.EmbedOptions` names them."""

    input: Required[Prompt | Inputs]  # type: ignore[misc]  # narrower than the package's, see above
    pooling: str | list[str]
    normalize: bool
    prompt_name: str
    instruction: str
    truncate: str


CompletionBody = Annotated[CompletionRequest, BeforeValidator(_without_nulls)]
ChatBody = Annotated[ChatRequest, BeforeValidator(_without_nulls)]
EmbeddingBody = Annotated[EmbeddingRequest, BeforeValidator(_without_nulls)]
