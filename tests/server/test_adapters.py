"""Adapters through a real server: in one batch with the base model, and coming and going while requests run."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from orthrus_client import InvalidRequest, OrthrusClient
from peft import LoraConfig, PeftModel, get_peft_model

from tests.reference import Reference, prompts, texts
from tests.serving import RunningServer

PROMPT, TEXT = prompts()[3], texts(9)[8]
LONG = 64  # tokens: some seconds of work


@pytest.fixture(scope="module")
def adapters(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the default model, of different ranks, for different layers."""
    folders = {}
    for name, rank, targets in (("A", 4, ["q_proj", "down_proj"]), ("B", 16, ["v_proj"])):
        torch.manual_seed(rank)
        config = LoraConfig(r=rank, target_modules=targets, init_lora_weights=False)
        peft = get_peft_model(reference.model, config)
        folders[name] = tmp_path_factory.mktemp("adapters") / name
        peft.save_pretrained(folders[name])
        reference.model = peft.unload()
    return folders


@pytest.fixture
def client(server: RunningServer, adapters_file: Path) -> Iterator[OrthrusClient]:
    with OrthrusClient(server.grpc) as client:
        yield client
        adapters_file.write_text("", encoding="utf-8")
        for name in ("A", "B"):
            wait_until_gone(client, name)


class Expected:
    """What PEFT answers."""

    def __init__(self, reference: Reference, folder: Path | None) -> None:
        asked = reference
        if folder is not None:
            peft = PeftModel.from_pretrained(reference.model, folder).eval()
            asked = reference.with_model(peft.base_model.model)
        self.text = asked.greedy_text(PROMPT, 16 if folder is None else LONG)
        self.vector = asked.embed(TEXT)
        if folder is not None:
            reference.model = peft.unload()


def serves(client: OrthrusClient, name: str) -> bool:
    try:
        client.embed("x", adapter=name)
    except InvalidRequest as error:
        if f"unknown adapter '{name}'" not in str(error):
            raise
        return False
    return True


def wait_until_served(client: OrthrusClient, name: str) -> None:
    deadline = time.monotonic() + 30
    while not serves(client, name):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_until_gone(client: OrthrusClient, name: str) -> None:
    deadline = time.monotonic() + 30
    while serves(client, name):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_adapters_come_and_go_under_requests_that_run(
    server: RunningServer,
    client: OrthrusClient,
    reference: Reference,
    adapters: dict[str, Path],
    adapters_file: Path,
) -> None:
    base, a, b = (Expected(reference, folder) for folder in (None, adapters["A"], adapters["B"]))
    assert len({base.text, a.text, b.text}) == 3
    adapters_file.write_text(f"A={adapters['A']}\nB={adapters['B']}\n", encoding="utf-8")
    wait_until_served(client, "B")

    def generate(max_tokens: int, adapter: dict[str, str]) -> str:
        return client.generate(PROMPT, max_tokens=max_tokens, temperature=0, **adapter).text

    with ThreadPoolExecutor(4) as threads:
        by_base = threads.submit(generate, 16, {})
        by_b = threads.submit(generate, LONG, {"adapter": "B"})
        stream = client.stream(PROMPT, max_tokens=LONG, temperature=0, adapter="A")
        text = next(stream).text
        for options, expected in (({"adapter": "B"}, b), ({"adapter": "A"}, a), ({}, base)):
            vectors = client.embed([TEXT, TEXT], **options)
            np.testing.assert_allclose(vectors, [expected.vector] * 2, rtol=0, atol=1e-5)
        adapters_file.write_text(f"A={adapters['B']}\n", encoding="utf-8")  # A is another one now, and B is gone
        wait_until_gone(client, "B")
        np.testing.assert_allclose(client.embed(TEXT, adapter="A")[0], b.vector, rtol=0, atol=1e-5)
        assert not by_b.done()  # or nothing is shown
        assert text + "".join(chunk.text for chunk in stream) == a.text
        assert by_b.result(120) == b.text
        assert by_base.result(120) == base.text
    assert generate(16, {}) == base.text
