"""The page's endpoints, through a real gateway and a real server. `test_browser.py` looks at the page itself."""

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from orthrus_client import AsyncOrthrusClient, OrthrusClient
from orthrus_client.gateway.demo import events
from orthrus_client.gateway.demo.corpora import KEPT_UPLOADS, Corpora, Corpus, Indexing, trained_to_embed
from orthrus_client.gateway.demo.endpoints import UPLOAD_BYTES
from orthrus_client.gateway.demo.site import FILES
from orthrus_client.gateway.errors import ApiError
from orthrus_client.gateway.load import Load
from orthrus_client.index import Document
from orthrus_client.retrieval import default_prompt
from orthrus_client.sample_corpus import sample_corpus
from orthrus_client.server_counts import ServerCounts

from tests.gateway.serving import RunningGateway, running_gateway
from tests.serving import RunningServer

SAMPLE = sample_corpus()
QUESTION = SAMPLE.questions[0].text
TEXT = "Text files only.\n\nThe lighthouse keeper of Skerry is called Wilhelmina Okonkwo."
PLAIN = {"Content-Type": "text/plain; charset=utf-8", "X-Document-Name": "notes.txt"}

Event = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with gateway.http() as client:
        yield client


def stream(answer: httpx.Response) -> Iterator[Event]:
    """The events of a stream, as they come."""
    assert answer.status_code == 200, answer.read()
    assert answer.headers["content-type"].startswith("text/event-stream")
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def ask(http: httpx.Client, **body: Any) -> list[Event]:
    with http.stream("POST", "/demo/ask", json={"question": QUESTION, "max_tokens": 6, **body}) as answer:
        return list(stream(answer))


def named(name: str, found: list[Event]) -> list[dict[str, Any]]:
    return [data for kind, data in found if kind == name]


class TestSite:
    def test_the_page_and_its_files_need_no_key_and_may_load_nothing_from_elsewhere(
        self, gateway: RunningGateway
    ) -> None:
        page = httpx.get(gateway.url)
        linked = re.findall(r'(?:href|src)="(/[^"]*)"', page.text)
        assert sorted(linked) == sorted(f"/static/{file.name}" for file in FILES.iterdir() if file.suffix != ".html")
        for answer in [page, *(httpx.get(gateway.url + path) for path in linked)]:
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)
        assert httpx.head(gateway.url).status_code == 200
        assert httpx.get(f"{gateway.url}/static/missing.js").status_code == 404

    def test_everything_below_demo_needs_the_key(self, gateway: RunningGateway) -> None:
        for method, path in (("GET", ""), ("GET", "/load"), ("POST", "/ask"), ("POST", "/documents")):
            answer = httpx.request(method, f"{gateway.url}/demo{path}", headers={"Authorization": "Bearer wrong"})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"

    def test_both_palettes_have_contrast(self) -> None:
        """WCAG 2.2: 4.5 to 1 for text, 3 to 1 for what else has to be seen."""
        css = (FILES / "page.css").read_text()
        light, dark = (dict(re.findall(r"--([a-z-]+): (#\w{6});", block)) for block in css.split("@media", 2)[:2])
        assert light.keys() == dark.keys()
        for palette in (light, dark):
            for text in ("text", "quiet", "problem", "accent"):
                assert all(contrast(palette[text], palette[under]) >= 4.5 for under in ("background", "panel"))
            assert contrast(palette["on-accent"], palette["accent"]) >= 4.5
            assert contrast(palette["text"], palette["chosen"]) >= 4.5
            assert all(
                contrast(palette[bar], palette["panel"]) >= 3 for bar in ("embed", "prefill", "decode", "control")
            )


def contrast(one: str, other: str) -> float:
    """The ratio of relative luminances, as WCAG 2.2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lower, higher = sorted((luminance(one), luminance(other)))
    return (higher + 0.05) / (lower + 0.05)


class TestAsk:
    def test_rounds_come_as_they_happen(self, http: httpx.Client, direct: OrthrusClient) -> None:
        found = ask(http, rounds=2, documents=2)
        kinds = [kind for kind, _ in found]
        assert re.fullmatch(r"(progress )+round (text )+answer round (text )+answer done ", " ".join([*kinds, ""]))
        assert named("progress", found)[-1] == {"done": 30, "total": 30}
        first, second = named("round", found)
        answers = named("answer", found)
        assert first["query"] == QUESTION
        assert second["query"] == f"{QUESTION} {answers[0]['text']}"
        texts = {document.id: document.text for document in SAMPLE.documents}
        for entry, answer in zip((first, second), answers, strict=True):
            assert [texts[document["id"]] for document in entry["documents"]] == [
                document["text"] for document in entry["documents"]
            ]
            documents = [Document(document["id"], document["text"]) for document in entry["documents"]]
            assert len(documents) == 2
            expected = direct.chat(default_prompt(QUESTION, documents), max_tokens=6, temperature=0)
            assert answer["text"] == expected.text.strip()
            assert answer["num_output_tokens"] == expected.num_output_tokens
        pieces = "".join(data["text"] for data in named("text", found))
        assert pieces.replace(" ", "") == "".join(answer["text"] for answer in answers).replace(" ", "")

    def test_a_text_that_was_sent_is_what_is_asked_over(self, http: httpx.Client) -> None:
        sent = http.post(
            "/demo/documents", content=TEXT.encode(), headers=PLAIN | {"X-Document-Name": "a%2Fd%C3%A9.txt"}
        )
        assert sent.json()["name"] == "dé.txt"
        found = ask(http, question="Who keeps the lighthouse?", corpus=sent.json()["id"], rounds=1)
        (entry,) = named("round", found)
        assert entry["documents"][0]["id"] == "dé.txt#1"
        assert "Wilhelmina Okonkwo" in "".join(document["text"] for document in entry["documents"])
        assert named("answer", found)

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"question": "  "}, "question"),
            ({"question": "x" * 1001}, "question"),
            ({"question": "\ud800"}, "question"),
            ({"rounds": 0}, "rounds"),
            ({"rounds": 99}, "rounds"),
            ({"documents": "5"}, "documents"),
            ({"max_tokens": 513}, "max_tokens"),
            ({"more": 1}, "more"),
        ],
    )
    def test_a_bad_question_is_refused_by_name(self, http: httpx.Client, body: dict[str, Any], param: str) -> None:
        content = json.dumps({"question": QUESTION, **body})
        answer = http.post("/demo/ask", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param

    def test_what_is_not_kept_is_said(self, http: httpx.Client) -> None:
        answer = http.post("/demo/ask", json={"question": QUESTION, "corpus": "no such"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "corpus_not_found"

    def test_what_the_server_refuses_ends_the_stream_with_its_reason(self, http: httpx.Client) -> None:
        found = ask(http, question="ꙮ" * 1000)  # more than 1024 tokens
        assert found[-1][0] == "error"
        assert "1024" in found[-1][1]["message"]

    def test_a_closed_page_ends_the_work(self, http: httpx.Client, server: RunningServer) -> None:
        body = {"question": "Tell a long story about every plan.", "rounds": 5, "max_tokens": 512}
        before = settled(server)
        with http.stream("POST", "/demo/ask", json=body) as answer:
            found = stream(answer)
            assert next(data for kind, data in found if kind == "text")
        deadline = time.monotonic() + 30
        while outcomes(server) == before and time.monotonic() < deadline:
            time.sleep(0.2)
        # The round was cancelled, and no other has begun.
        assert settled(server) == {"cancelled": before["cancelled"] + 1, "finished": before["finished"]}


def settled(server: RunningServer) -> dict[str, int]:
    """`outcomes` when they do not change any more: the server publishes them twice a second."""
    before = None
    while (now := outcomes(server)) != before:
        before = now
        time.sleep(1.2)
    return now


def outcomes(server: RunningServer) -> dict[str, int]:
    """How many generations have ended, by how."""
    page = httpx.get(f"http://{server.metrics}/metrics").text
    pattern = r'^orthrus_requests_total\{[^}]*kind="generate",outcome="%s"\} (\d+)'
    return {how: sum(map(int, re.findall(pattern % how, page, re.MULTILINE))) for how in ("cancelled", "finished")}


class TestUploads:
    @pytest.mark.parametrize(
        ("content", "headers", "status", "words"),
        [
            (b"text", {"Content-Type": "application/json"}, 415, "text/plain"),
            (b"text", {"Content-Type": "text/plain; charset=latin-1"}, 415, "UTF-8"),
            (b"caf\xe9", {}, 400, "not UTF-8 text (byte 3)"),
            (b"a\0b", {}, 400, "NUL (character 1)"),
            (b"", {}, 400, "no text"),
            (b" \n ", {}, 400, "no text"),
            (b"x" * (UPLOAD_BYTES + 1), {}, 413, str(UPLOAD_BYTES)),
        ],
        ids=["json", "latin-1", "not-utf-8", "nul", "empty", "blank", "large"],
    )
    def test_what_is_no_text_is_refused(
        self, http: httpx.Client, content: bytes, headers: dict[str, str], status: int, words: str
    ) -> None:
        answer = http.post("/demo/documents", content=content, headers=PLAIN | headers)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]

    def test_a_name_is_needed_which_no_other_site_can_make_a_browser_send(self, http: httpx.Client) -> None:
        answer = http.post("/demo/documents", content=TEXT, headers={"Content-Type": "text/plain"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "X-Document-Name"

    def test_the_one_that_was_not_asked_for_the_longest_makes_room(self) -> None:
        corpora = Corpora(SAMPLE)
        first, second, *_ = [corpora.add(Corpus(str(number), [])) for number in range(KEPT_UPLOADS)]
        assert corpora.get(first).name == "0"
        corpora.add(Corpus("new", []))
        assert corpora.get(first).name == "0"
        with pytest.raises(ApiError) as caught:
            corpora.get(second)
        assert caught.value.status == 404


class Counting(AsyncOrthrusClient):
    """Counts the texts that it embeds."""

    embedded = 0

    async def embed(self, texts: Any, **options: Any) -> Any:
        self.embedded += len(texts)
        return await super().embed(texts, **options)


class TestIndexing:
    @pytest.mark.anyio
    async def test_all_who_wait_share_the_work_and_nothing_of_it_is_lost(self, server: RunningServer) -> None:
        documents = [Document(str(number), f"text {number}") for number in range(20)]
        async with Counting(server.grpc) as client:
            indexing = Indexing(documents, {})
            async with aclosing(indexing.run(client, 60)) as counts:  # one who leaves after the first batch
                assert [await anext(counts), await anext(counts)] == [0, 8]

            async def wait() -> list[int]:
                return [done async for done in indexing.run(client, 60)]

            first, second = await asyncio.gather(wait(), wait())
            assert first[-1] == second[-1] == 20
            assert client.embedded == 20
            (hit,) = indexing.index.search((await client.embed(["text 7"]))[0], 1)
            assert hit.document.id == "7"

    @pytest.mark.parametrize(
        ("server", "trained"),
        [
            ({"model": "/a", "embedding_adapter": "none"}, False),
            ({"model": "/a"}, False),
            ({"model": "/a", "embedding_adapter": "/b"}, True),
            ({"model": "/a", "embedding_adapter": "none", "embedding_model": "/c"}, True),
            ({"model": "", "embedding_adapter": ""}, True),
            ({"model": "", "embedding_adapter": "none"}, False),
        ],
    )
    def test_only_what_was_not_trained_to_embed_is_whitened(self, server: dict[str, str], trained: bool) -> None:
        assert trained_to_embed(server) == trained

    def test_another_model_makes_another_index(self) -> None:
        corpus = Corpus("name", SAMPLE.documents)
        one = corpus.indexing({"model": "a"})
        assert corpus.indexing({"model": "a"}) is one
        assert corpus.indexing({"model": "b"}) is not one


class TestLoad:
    def test_tokens_are_counted_by_what_they_were_for(self, http: httpx.Client, direct: OrthrusClient) -> None:
        with http.stream("GET", "/demo/load") as answer:
            found = stream(answer)
            nothing = {"tokens": {"embed": 0, "prefill": 0, "decode": 0}}
            nothing["steps"] = {"embed": 0, "generate": 0, "mixed": 0}
            assert next(found) == ("load", {"seconds": 0.0, **nothing})
            while next(found)[1]["tokens"] != nothing["tokens"]:
                pass  # the server publishes what it did before
            tokens = int(direct.embed_with_usage(["a text to count", "and another"]).num_input_tokens.sum())
            embedded, steps = 0, 0
            while embedded < tokens:
                name, data = next(found)
                assert name == "load"
                assert 0.9 < data["seconds"] < 60
                embedded += data["tokens"]["embed"]
                steps += data["steps"]["embed"]
            assert embedded == tokens
            assert steps >= 1

    @pytest.mark.anyio
    async def test_metrics_of_something_else_are_none(self, server: RunningServer) -> None:
        async with httpx2.AsyncClient() as client:
            for address in (server.http, "127.0.0.1:1", "not an address"):
                reading = await Load(address, client).read()
                assert reading.counts is None
                assert events.load(reading, reading).startswith(b"event: unavailable\n")

    def test_counters_that_begin_anew_are_no_negative_work(self) -> None:
        line = 'orthrus_tokens_total{{instance="{}",kind="embed"}} {}\n'
        before, after = (ServerCounts.parse(line.format(0, n) + line.format(1, 5)) for n in (100, 3))
        assert before.tokens == {"embed": 105}
        assert (after - before).tokens["embed"] == 0

    def test_a_page_that_watches_does_not_keep_the_gateway_from_ending(
        self, server: RunningServer, tmp_path: Path
    ) -> None:
        with running_gateway(server.grpc, tmp_path / "stderr.log", "--metrics-url=127.0.0.1:1") as gateway:
            with httpx.stream("GET", f"{gateway.url}/demo/load", timeout=60) as answer:
                found = stream(answer)
                assert next(found) == ("unavailable", {})
                started = time.monotonic()
                gateway.process.send_signal(signal.SIGTERM)
                list(found)
            assert gateway.process.wait(30) == 0
            assert time.monotonic() - started < 15  # half of what running requests get
