"""The gateway through LangChain and LlamaIndex, as their users call it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from orthrus_client import Message, OrthrusClient

from orthrus_backend.default_model import ensure_default_model
from tests.gateway.conftest import KEY
from tests.gateway.serving import RunningGateway
from tests.reference import texts

QUESTION = "Name a city in Italy."
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def chat_text(direct: OrthrusClient) -> str:
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    return direct.chat(messages, max_tokens=8, temperature=0.0).text


@pytest.fixture(scope="module")
def completion_text(direct: OrthrusClient) -> str:
    return direct.generate(PROMPT, max_tokens=8, temperature=0.0).text


class TestLangChain:
    @pytest.fixture
    def options(self, gateway: RunningGateway, model: str) -> dict[str, Any]:
        return {"base_url": gateway.api, "api_key": KEY, "model": model, "max_retries": 0}

    def test_a_chat_is_answered_and_streamed(self, options: dict[str, Any], chat_text: str) -> None:
        chat = ChatOpenAI(temperature=0, max_tokens=8, stream_usage=True, **options)
        answer = chat.invoke(QUESTION)
        assert answer.content == chat_text
        pieces = list(chat.stream(QUESTION))
        assert "".join(str(piece.content) for piece in pieces) == chat_text
        assert [piece.usage_metadata for piece in pieces if piece.usage_metadata] == [answer.usage_metadata]

    @pytest.mark.anyio
    async def test_also_on_asyncio(self, options: dict[str, Any], chat_text: str) -> None:
        chat = ChatOpenAI(temperature=0, max_tokens=8, **options)
        assert (await chat.ainvoke(QUESTION)).content == chat_text

    def test_a_prompt_is_continued(self, options: dict[str, Any], completion_text: str) -> None:
        assert OpenAI(temperature=0, max_tokens=8, **options).invoke(PROMPT) == completion_text

    def test_texts_are_embedded_with_and_without_its_own_cutting(
        self, options: dict[str, Any], direct: OrthrusClient
    ) -> None:
        """Its cutting needs a tokenizer: tiktoken has none for this model, and the model's own is used instead."""
        wanted = direct.embed(texts(3))
        whole = OpenAIEmbeddings(check_embedding_ctx_length=False, **options)
        cut = OpenAIEmbeddings(tiktoken_enabled=False, tiktoken_model_name=str(Path(ensure_default_model())), **options)
        for embeddings in (whole, cut):
            np.testing.assert_allclose(embeddings.embed_documents(texts(3)), wanted, rtol=0, atol=1e-6)
            np.testing.assert_allclose(embeddings.embed_query(texts(1)[0]), wanted[0], rtol=0, atol=1e-5)


class TestLlamaIndex:
    @pytest.fixture
    def options(self, gateway: RunningGateway, model: str) -> dict[str, Any]:
        own = {"temperature": 0, "max_tokens": 8, "context_window": 1024, "max_retries": 0}
        return {"api_base": gateway.api, "api_key": KEY, "model": model, **own}

    def test_a_chat_is_answered_and_streamed(self, options: dict[str, Any], chat_text: str) -> None:
        llm = OpenAILike(is_chat_model=True, **options)
        messages = [ChatMessage(role="user", content=QUESTION)]
        assert llm.chat(messages).message.content == chat_text
        assert "".join(piece.delta or "" for piece in llm.stream_chat(messages)) == chat_text

    @pytest.mark.anyio
    async def test_also_on_asyncio(self, options: dict[str, Any], chat_text: str) -> None:
        llm = OpenAILike(is_chat_model=True, **options)
        assert (await llm.achat([ChatMessage(role="user", content=QUESTION)])).message.content == chat_text

    def test_a_prompt_is_continued_and_streamed(self, options: dict[str, Any], completion_text: str) -> None:
        llm = OpenAILike(is_chat_model=False, **options)
        assert llm.complete(PROMPT).text == completion_text
        assert "".join(piece.delta or "" for piece in llm.stream_complete(PROMPT)) == completion_text

    def test_texts_are_embedded(self, gateway: RunningGateway, model: str, direct: OrthrusClient) -> None:
        embedding = OpenAILikeEmbedding(model_name=model, api_base=gateway.api, api_key=KEY, max_retries=0)
        np.testing.assert_allclose(
            embedding.get_text_embedding_batch(texts(3)), direct.embed(texts(3)), rtol=0, atol=1e-6
        )
        np.testing.assert_allclose(embedding.get_query_embedding("Hi"), direct.embed("Hi")[0], rtol=0, atol=1e-6)
