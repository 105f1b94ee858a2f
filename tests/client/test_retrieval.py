"""The rounds of iterative retrieval, with a scripted client in the place of a server."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from orthrus_client import AsyncOrthrusClient, Generation, Message, Unavailable
from orthrus_client.index import Document, DocumentIndex
from orthrus_client.retrieval import IterativeRetriever, Step

DOCUMENTS = [Document("gold", "gold"), Document("gym", "gym"), Document("other", "other")]


class Scripted:
    """Embeds by which of three words a text has; answers with the first document that it is given."""

    def __init__(self) -> None:
        self.at_once = 0
        self.most_at_once = 0

    async def embed(self, text: str, **_: Any) -> np.ndarray:
        return np.array([[text.count("gold"), 2 * text.count("gym"), 0.1]], dtype=np.float32)

    async def chat(self, messages: Sequence[Message], **_: Any) -> Generation:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        if "fail" in messages[-1]["content"]:
            raise Unavailable("busy")
        return Generation(" it means gym ", "stop", 10, 3)


def retriever(client: Scripted, **options: Any) -> IterativeRetriever:
    index = DocumentIndex.build(DOCUMENTS, np.eye(3, dtype=np.float32))
    return IterativeRetriever(cast(AsyncOrthrusClient, client), index, **options)


@pytest.mark.anyio
async def test_a_query_is_the_question_and_the_answer_before() -> None:
    answer = await retriever(Scripted(), rounds=3, top_k=1).ask("gold?")
    assert [step.query for step in answer.steps] == ["gold?", "gold? it means gym", "gold? it means gym"]
    assert [step.round for step in answer.steps] == [1, 2, 3]
    assert [step.hits[0].document.id for step in answer.steps] == ["gold", "gym", "gym"]
    assert answer.text == "it means gym"


@pytest.mark.anyio
async def test_every_step_is_reported() -> None:
    steps: list[Step] = []
    answers = await retriever(Scripted(), top_k=2, on_step=steps.append).ask_all(["gold?", "gym?"])
    assert [answer.question for answer in answers] == ["gold?", "gym?"]
    assert {(step.question, step.round) for step in steps} == {("gold?", 1), ("gold?", 2), ("gym?", 1), ("gym?", 2)}
    assert all(len(step.hits) == 2 and step.generate_seconds > 0 for step in steps)


@pytest.mark.anyio
async def test_questions_are_worked_on_at_once_up_to_a_limit() -> None:
    client = Scripted()
    await retriever(client).ask_all(["gold?"] * 8, concurrency=3)
    assert client.most_at_once == 3


@pytest.mark.anyio
async def test_the_first_failure_is_raised_as_it_is() -> None:
    with pytest.raises(Unavailable, match="busy"):
        await retriever(Scripted()).ask_all(["gold?", "fail?"])


@pytest.mark.parametrize("option", ["rounds", "top_k"])
def test_less_than_one_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}.*0"):
        retriever(Scripted(), **{option: 0})
