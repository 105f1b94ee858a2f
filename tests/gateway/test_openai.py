"""The gateway through OpenAI's own client: the answers are those of the server, in OpenAI's forms."""

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from orthrus_client import OrthrusClient

from tests.gateway.conftest import KEY
from tests.gateway.serving import RunningGateway
from tests.reference import Reference, prompts, texts

CHAT: Any = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Name a colour."}]
GREEDY: Any = {"max_tokens": 8, "temperature": 0.0}
DRAWN: Any = {"max_tokens": 6, "temperature": 1.5, "top_p": 0.95, "seed": 5, "n": 3}
USAGE: Any = {"stream": True, "stream_options": {"include_usage": True}}


def joined(pieces: Iterable[Completion], index: int = 0) -> str:
    return "".join(choice.text for piece in pieces for choice in piece.choices if choice.index == index)


def joined_chat(pieces: Iterable[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(choice.delta.content or "" for piece in pieces for choice in piece.choices if choice.index == index)


class TestEmbeddings:
    def test_vectors_and_usage_are_the_servers(self, client: openai.OpenAI, direct: OrthrusClient, model: str) -> None:
        wanted = direct.embed_with_usage(texts(5))
        as_base64 = client.embeddings.create(model=model, input=texts(5))  # what this client asks for by itself
        as_float = client.embeddings.create(model=model, input=texts(5), encoding_format="float")
        for answer in (as_base64, as_float):
            assert [entry.index for entry in answer.data] == [0, 1, 2, 3, 4]
            vectors = [entry.embedding for entry in answer.data]
            np.testing.assert_allclose(vectors, wanted.vectors, rtol=0, atol=1e-6)
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == wanted.num_input_tokens.sum()
            assert answer.model == model

    def test_both_encodings_hold_the_same_numbers(self, client: openai.OpenAI, model: str) -> None:
        """One text alone: its vector is the same to the last bit each time."""
        as_base64 = client.embeddings.create(model=model, input="Hello there").data[0].embedding
        as_float = client.embeddings.create(model=model, input="Hello there", encoding_format="float").data[0].embedding
        assert np.array_equal(np.float32(as_base64), np.float32(as_float))

    def test_token_ids_mean_what_their_text_means(
        self, client: openai.OpenAI, model: str, reference: Reference
    ) -> None:
        ids = [reference.tokenizer(text)["input_ids"] for text in texts(3)]
        wanted = [reference.embed(text) for text in texts(3)]
        many = client.embeddings.create(model=model, input=ids)
        np.testing.assert_allclose([entry.embedding for entry in many.data], wanted, rtol=0, atol=1e-5)
        assert many.usage.prompt_tokens == sum(map(len, ids))
        one = client.embeddings.create(model=model, input=ids[0])
        np.testing.assert_allclose(one.data[0].embedding, wanted[0], rtol=0, atol=1e-5)

    def test_dimensions_and_the_engines_own_options(
        self, client: openai.OpenAI, direct: OrthrusClient, model: str
    ) -> None:
        answer = client.embeddings.create(model=model, input="Hi", dimensions=8, extra_body={"pooling": "last"})
        wanted = direct.embed("Hi", dimensions=8, pooling="last")
        np.testing.assert_allclose(answer.data[0].embedding, wanted[0], rtol=0, atol=1e-6)


class TestCompletions:
    def test_texts_and_usage_are_the_servers(self, client: openai.OpenAI, direct: OrthrusClient, model: str) -> None:
        asked = prompts()[:2]
        wanted = [direct.generate(prompt, max_tokens=8, temperature=0.0) for prompt in asked]
        answer = client.completions.create(model=model, prompt=asked, **GREEDY)
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert [choice.text for choice in answer.choices] == [generation.text for generation in wanted]
        assert [choice.finish_reason for choice in answer.choices] == [each.finish_reason for each in wanted]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(each.num_input_tokens for each in wanted)
        assert answer.usage.completion_tokens == sum(each.num_output_tokens for each in wanted)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_a_stream_is_the_same_in_pieces(self, client: openai.OpenAI, model: str) -> None:
        asked = prompts()[:2]
        whole = client.completions.create(model=model, prompt=asked, **GREEDY)
        pieces = list(client.completions.create(model=model, prompt=asked, **GREEDY, **USAGE))
        assert len(pieces) > 6
        assert [joined(pieces, index) for index in range(2)] == [choice.text for choice in whole.choices]
        assert pieces[-1].choices == []
        assert pieces[-1].usage == whole.usage
        assert all(piece.usage is None for piece in pieces[:-1])
        ends = [choice.finish_reason for piece in pieces for choice in piece.choices if choice.finish_reason]
        assert sorted(ends) == sorted(choice.finish_reason for choice in whole.choices)
        silent = list(client.completions.create(model=model, prompt="Once", stream=True, **GREEDY))
        assert all(piece.usage is None and piece.choices for piece in silent)

    def test_token_ids_mean_what_their_text_means(
        self, client: openai.OpenAI, model: str, reference: Reference
    ) -> None:
        ids = [reference.tokenizer(prompt)["input_ids"] for prompt in prompts()[:2]]
        wanted = [reference.greedy_text(prompt, 8) for prompt in prompts()[:2]]
        answer = client.completions.create(model=model, prompt=ids, **GREEDY)
        assert [choice.text for choice in answer.choices] == wanted
        assert client.completions.create(model=model, prompt=ids[1], **GREEDY).choices[0].text == wanted[1]

    def test_echo_puts_the_prompt_first(self, client: openai.OpenAI, model: str) -> None:
        plain = client.completions.create(model=model, prompt="Once upon", **GREEDY).choices[0].text
        assert client.completions.create(model=model, prompt="Once upon", echo=True, **GREEDY).choices[0].text == (
            "Once upon" + plain
        )
        pieces = client.completions.create(model=model, prompt="Once upon", echo=True, stream=True, **GREEDY)
        assert joined(pieces) == "Once upon" + plain

    def test_n_texts_of_each_prompt_are_those_of_their_seeds(
        self, client: openai.OpenAI, direct: OrthrusClient, model: str
    ) -> None:
        asked = ["Once upon a time", "The sea"]
        wanted = [text.text for prompt in asked for text in direct.generate_n(prompt, **DRAWN)]
        assert len(set(wanted)) == 6
        answer = client.completions.create(model=model, prompt=asked, **DRAWN)
        assert [choice.text for choice in answer.choices] == wanted
        pieces = list(client.completions.create(model=model, prompt=asked, **DRAWN, **USAGE))
        assert [joined(pieces, index) for index in range(6)] == wanted
        assert pieces[-1].usage == answer.usage

    def test_logprobs_are_of_the_chosen_tokens(self, client: openai.OpenAI, direct: OrthrusClient, model: str) -> None:
        options: Any = {"max_tokens": 6, "temperature": 1.5, "seed": 3}
        wanted = direct.generate("Once", logprobs=2, **options)
        choice = client.completions.create(model=model, prompt="Once", logprobs=2, **options).choices[0]
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or []) == choice.text == wanted.text
        assert sum(choice.logprobs.token_logprobs or []) == pytest.approx(wanted.cumulative_logprob, abs=1e-3)
        assert all(2 <= len(top) <= 3 for top in choice.logprobs.top_logprobs or [])
        offsets = choice.logprobs.text_offset or []
        for start, token in zip(offsets, choice.logprobs.tokens or [], strict=True):
            assert choice.text[start:].startswith(token)
        pieces = client.completions.create(model=model, prompt="Once", logprobs=2, stream=True, **options)
        parts = [piece.choices[0].logprobs for piece in pieces]
        assert [token for part in parts if part for token in part.tokens or []] == choice.logprobs.tokens
        assert [offset for part in parts if part for offset in part.text_offset or []] == offsets

    def test_stop_ends_a_text(self, client: openai.OpenAI, model: str) -> None:
        plain = client.completions.create(model=model, prompt="The capital of France is", **GREEDY).choices[0].text
        stop = plain[4:7]
        for stream in (False, True):
            answer = client.completions.create(
                model=model, prompt="The capital of France is", stop=[stop], stream=stream, **GREEDY
            )
            pieces = list(answer) if isinstance(answer, openai.Stream) else [answer]
            assert joined(pieces) == plain[: plain.index(stop)]
            assert pieces[-1].choices[0].finish_reason == "stop"


class TestChat:
    def test_the_answer_and_usage_are_the_servers(
        self, client: openai.OpenAI, direct: OrthrusClient, model: str
    ) -> None:
        wanted = direct.chat(CHAT, max_tokens=8, temperature=0.0)
        answer = client.chat.completions.create(model=model, messages=CHAT, **GREEDY)
        assert answer.choices[0].message.content == wanted.text
        assert answer.choices[0].finish_reason == wanted.finish_reason
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == wanted.num_input_tokens
        assert answer.usage.completion_tokens == wanted.num_output_tokens
        text = {"type": "text", "text": CHAT[1]["content"]}
        parts: Any = [CHAT[0] | {"role": "developer"}, {"role": "user", "content": [text]}]
        same = client.chat.completions.create(model=model, messages=parts, max_completion_tokens=8, temperature=0)
        assert same.choices[0].message.content == wanted.text

    def test_a_stream_is_the_same_in_pieces(self, client: openai.OpenAI, model: str) -> None:
        whole = client.chat.completions.create(model=model, messages=CHAT, **DRAWN)
        pieces = list(client.chat.completions.create(model=model, messages=CHAT, **DRAWN, **USAGE))
        for index, choice in enumerate(whole.choices):
            assert joined_chat(pieces, index) == choice.message.content
            mine = [each for piece in pieces for each in piece.choices if each.index == index]
            assert [each.delta.role for each in mine] == ["assistant", *[None] * (len(mine) - 1)]
            assert [each.finish_reason for each in mine] == [*[None] * (len(mine) - 1), choice.finish_reason]
        assert len({choice.message.content for choice in whole.choices}) == 3
        assert pieces[-1].usage == whole.usage

    def test_logprobs_come_with_so_many_others(self, client: openai.OpenAI, model: str) -> None:
        options: Any = {"model": model, "messages": CHAT, "logprobs": True, "top_logprobs": 3, "temperature": 0}
        choice = client.chat.completions.create(max_tokens=4, **options).choices[0]
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert b"".join(bytes(token.bytes or []) for token in tokens).decode() == choice.message.content
        for token in tokens:
            assert len(token.top_logprobs) == 3
            assert token.top_logprobs[0].token == token.token  # greedy: the likeliest was chosen
            assert token.top_logprobs[0].logprob == token.logprob
        pieces = client.chat.completions.create(max_tokens=4, stream=True, **options)
        streamed = [each.logprobs.content for piece in pieces for each in piece.choices if each.logprobs]
        assert [token for content in streamed for token in content or []] == tokens

    def test_a_conversation_goes_on(self, client: openai.OpenAI, model: str) -> None:
        first = client.chat.completions.create(model=model, messages=CHAT, **GREEDY).choices[0].message
        for turn in (first, first.model_dump()):
            messages = [*CHAT, turn, {"role": "user", "content": "Another?"}]
            assert client.chat.completions.create(model=model, messages=messages, **GREEDY).choices[0].message.content


def test_what_cannot_change_an_answer_is_taken(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=CHAT,
        user="somebody",
        metadata={"a": "b"},
        store=False,
        tools=[],
        response_format={"type": "text"},
        service_tier="auto",
        **GREEDY,
    )
    assert answer.choices[0].message.content


@pytest.mark.anyio
async def test_the_asyncio_client_gets_the_same(gateway: RunningGateway, client: openai.OpenAI, model: str) -> None:
    async def streamed(aclient: openai.AsyncOpenAI) -> str:
        stream = await aclient.chat.completions.create(model=model, messages=CHAT, stream=True, **GREEDY)
        return joined_chat([piece async for piece in stream])

    async with openai.AsyncOpenAI(base_url=gateway.api, api_key=KEY, max_retries=0) as aclient:
        chats, vectors, completion = await asyncio.gather(
            asyncio.gather(*(streamed(aclient) for _ in range(4))),
            aclient.embeddings.create(model=model, input=texts(4)),
            aclient.completions.create(model=model, prompt=prompts()[:4], **GREEDY),
        )
    alone = client.chat.completions.create(model=model, messages=CHAT, **GREEDY).choices[0].message.content
    assert set(chats) == {alone}
    assert completion == client.completions.create(model=model, prompt=prompts()[:4], **GREEDY).model_copy(
        update={"id": completion.id, "created": completion.created}
    )
    wanted = client.embeddings.create(model=model, input=texts(4))
    np.testing.assert_allclose(
        [entry.embedding for entry in vectors.data], [entry.embedding for entry in wanted.data], rtol=0, atol=1e-5
    )
