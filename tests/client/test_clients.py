"""Both clients over both protocols, against a real server and the reference."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from uuid import uuid4

import httpx2
import numpy as np
import pytest
from orthrus_client import (
    AsyncOrthrusClient,
    Chunk,
    DeadlineExceeded,
    Generation,
    InvalidRequest,
    Message,
    OrthrusClient,
    Sampling,
)
from prometheus_client.parser import text_string_to_metric_families

from tests.reference import Reference, prompts, texts
from tests.server.test_observability import lines
from tests.serving import RunningServer

GREEDY: Sampling = {"max_tokens": 12, "temperature": 0.0}
LONG: Sampling = {"max_tokens": 1000, "temperature": 0.0, "ignore_eos": True}
CHAT: list[Message] = [{"role": "user", "content": "Name a colour."}]


def ended(server: RunningServer, outcome: str) -> int:
    """Generations that ended so, by the server's own count."""
    page = httpx2.get(f"http://{server.metrics}/metrics").text
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "orthrus_requests_total"
        and (sample.labels["kind"], sample.labels["outcome"]) == ("generate", outcome)
    )


def wait_for_cancelled(server: RunningServer, count: int) -> None:
    deadline = time.monotonic() + 10
    while ended(server, "cancelled") < count and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ended(server, "cancelled") == count


def test_embeddings_are_the_references(client: OrthrusClient, reference: Reference) -> None:
    wanted = np.stack([reference.embed(text) for text in texts(5)])
    result = client.embed_with_usage(texts(5))
    np.testing.assert_allclose(result.vectors, wanted, rtol=0, atol=1e-5)
    assert result.vectors.dtype == np.float32
    assert result.num_input_tokens.tolist() == [len(reference.tokenizer(text)["input_ids"]) for text in texts(5)]


def test_options_reach_the_server(client: OrthrusClient, reference: Reference) -> None:
    vectors = client.embed("Hello there", pooling="last", dimensions=64)
    wanted = reference.embed("Hello there", "last")[:64]
    np.testing.assert_allclose(vectors, [wanted / np.linalg.norm(wanted)], rtol=0, atol=1e-5)


def test_texts_are_the_references(client: OrthrusClient, reference: Reference) -> None:
    for prompt in prompts()[:4]:
        result = client.generate(prompt, **GREEDY)
        assert result.text == reference.greedy_text(prompt, 12)
        assert result.num_input_tokens == len(reference.tokenizer(prompt)["input_ids"])
        assert result.finish_reason == "stop" if result.num_output_tokens < 12 else "length"


def test_a_stream_is_the_same_text_in_pieces(client: OrthrusClient) -> None:
    chunks = list(client.stream(prompts()[0], **GREEDY))
    assert len(chunks) > 2
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert Generation.join(chunks) == client.generate(prompts()[0], **GREEDY)


def test_a_chat_is_answered(client: OrthrusClient) -> None:
    answer = client.chat(CHAT, **GREEDY)
    assert answer.text
    assert Generation.join(client.stream_chat(CHAT, **GREEDY)) == answer


def test_a_text_is_no_chat(client: OrthrusClient) -> None:
    for call in (client.chat, client.stream_chat):
        with pytest.raises(ValueError, match=r"list of .*Name a colour"):
            call("Name a colour.")  # type: ignore[operator]


def test_calls_carry_the_id_that_they_are_given(client: OrthrusClient, server: RunningServer) -> None:
    own = client.with_request_id(name := f"mine {uuid4()}")
    own.generate("Hi", **GREEDY)
    own.embed("Hi")
    client.embed("Hi")
    assert [line["kind"] for line in lines(server, 2, id=name)] == ["generate", "embed"]


def test_log_probabilities_come_when_asked_for(client: OrthrusClient) -> None:
    result = client.generate(prompts()[0], logprobs=2, **GREEDY)
    assert result.cumulative_logprob is not None
    assert result.cumulative_logprob < 0
    assert result.logprobs
    assert client.generate(prompts()[0], **GREEDY).cumulative_logprob is None


def test_token_ids_mean_what_their_text_means(client: OrthrusClient, reference: Reference) -> None:
    ids = [reference.tokenizer(text)["input_ids"] for text in texts(3)]
    result = client.embed_with_usage(ids, batch_size=2)
    wanted = [reference.embed(text) for text in texts(3)]
    np.testing.assert_allclose(result.vectors, wanted, rtol=0, atol=1e-5)
    assert result.num_input_tokens.tolist() == [len(each) for each in ids]
    prompt = reference.tokenizer(prompts()[0])["input_ids"]
    assert client.generate(prompt, **GREEDY).text == reference.greedy_text(prompts()[0], 12)
    assert client.generate(np.array(prompt), **GREEDY) == client.generate(prompt, **GREEDY)
    with pytest.raises(InvalidRequest, match=r"1000000.*vocabulary"):
        client.embed([[10**6]])


def test_several_texts_of_one_prompt(client: OrthrusClient) -> None:
    drawn: Sampling = {"max_tokens": 6, "temperature": 0.9, "seed": 7, "logprobs": 1}
    alone = [client.generate("Once", **(drawn | {"seed": 7 + i})) for i in range(3)]
    answers = client.generate_n("Once", n=3, **drawn)
    assert [answer.text for answer in answers] == [answer.text for answer in alone]
    assert [answer.finish_reason for answer in answers] == [answer.finish_reason for answer in alone]
    assert [len(answer.logprobs or []) for answer in answers] == [answer.num_output_tokens for answer in answers]
    assert Generation.join_each(client.stream("Once", n=3, **drawn)) == answers
    assert len(client.chat_n(CHAT, n=2, **drawn)) == 2
    for call in (client.generate, client.chat):
        with pytest.raises(ValueError, match=r"n 2: .*generate_n"):
            call("Once", n=2)  # type: ignore[operator]


def test_many_threads_share_a_client(client: OrthrusClient) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = [threads.submit(client.generate, prompt, **GREEDY) for prompt in prompts()[:8] * 2]
        vectors = [threads.submit(client.embed, text) for text in texts(8) * 2]
        assert [answer.result().text for answer in answers[:8]] == [answer.result().text for answer in answers[8:]]
        for one, other in zip(vectors[:8], vectors[8:], strict=True):
            np.testing.assert_allclose(one.result(), other.result(), rtol=0, atol=1e-5)


def test_a_fault_is_named(client: OrthrusClient) -> None:
    with pytest.raises(InvalidRequest, match=r"top_p.*7"):
        client.generate("Hello", top_p=7)
    with pytest.raises(InvalidRequest, match=r"top_p.*7"):
        list(client.stream("Hello", top_p=7))
    with pytest.raises(InvalidRequest, match="empty"):
        client.embed(["fine", ""])
    assert client.generate("Hello", max_tokens=1).num_output_tokens == 1


def test_a_flood_of_faults_leaves_the_server_alive(client: OrthrusClient) -> None:
    def fail(_: int) -> None:
        for _ in range(50):
            with pytest.raises(InvalidRequest, match=r"top_p.*7"):
                list(client.stream("Hello", top_p=7))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fail, range(8)))
    assert client.is_ready()


def test_closing_a_stream_stops_the_server(client: OrthrusClient, server: RunningServer) -> None:
    before = ended(server, "cancelled")
    with closing(client.stream("Once", **LONG)) as chunks:
        next(chunks)
    wait_for_cancelled(server, before + 1)


def test_a_deadline_stops_the_server(client: OrthrusClient, server: RunningServer) -> None:
    before = ended(server, "cancelled")
    with pytest.raises(DeadlineExceeded, match=r"1\.0 s"):
        client.generate("Once", timeout=1.0, **LONG)
    with pytest.raises(DeadlineExceeded, match=r"1\.0 s"):
        list(client.stream("Once", timeout=1.0, **LONG))
    wait_for_cancelled(server, before + 2)


def test_a_running_server_is_ready(client: OrthrusClient) -> None:
    assert client.is_ready()


@pytest.mark.anyio
async def test_async_answers_are_the_references(aclient: AsyncOrthrusClient, reference: Reference) -> None:
    assert await aclient.is_ready()
    answers, vectors = await asyncio.gather(
        asyncio.gather(*(aclient.generate(prompt, **GREEDY) for prompt in prompts()[:6])),
        asyncio.gather(*(aclient.embed(text) for text in texts(6))),
    )
    assert [answer.text for answer in answers] == [reference.greedy_text(prompt, 12) for prompt in prompts()[:6]]
    np.testing.assert_allclose(np.concatenate(vectors), [reference.embed(text) for text in texts(6)], rtol=0, atol=1e-5)


@pytest.mark.anyio
async def test_async_streams(aclient: AsyncOrthrusClient) -> None:
    chunks: list[Chunk] = [chunk async for chunk in aclient.stream(prompts()[0], **GREEDY)]
    assert len(chunks) > 2
    assert Generation.join(chunks) == await aclient.generate(prompts()[0], **GREEDY)
    chat = [chunk async for chunk in aclient.stream_chat(CHAT, **GREEDY)]
    assert Generation.join(chat) == await aclient.chat(CHAT, **GREEDY)


@pytest.mark.anyio
async def test_async_faults_are_named(aclient: AsyncOrthrusClient) -> None:
    with pytest.raises(InvalidRequest, match=r"top_p.*7"):
        await aclient.generate("Hello", top_p=7)
    with pytest.raises(InvalidRequest, match="empty"):
        await aclient.embed("")
    with pytest.raises(ValueError, match="Name a colour"):
        await aclient.chat("Name a colour.")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Name a colour"):
        aclient.stream_chat("Name a colour.")  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_leaving_early_stops_the_server(aclient: AsyncOrthrusClient, server: RunningServer) -> None:
    before = ended(server, "cancelled")
    async with aclosing(aclient.stream("Once", **LONG)) as chunks:
        await anext(chunks)
    with pytest.raises(DeadlineExceeded, match=r"1\.0 s"):
        await aclient.generate("Once", timeout=1.0, **LONG)
    task = asyncio.create_task(aclient.generate("Once", **LONG))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_for_cancelled, server, before + 3)
