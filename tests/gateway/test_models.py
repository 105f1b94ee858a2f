"""Names of models: an adapter is asked for as a model of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from orthrus_client import OrthrusClient
from peft import LoraConfig, get_peft_model

from tests.reference import Reference
from tests.server.test_adapters import wait_until_gone, wait_until_served
from tests.server.test_shutdown import wait_until

PROMPT = "Once upon a time"
GREEDY: Any = {"max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def adapter(
    reference: Reference, direct: OrthrusClient, adapters_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An adapter that the shared server serves for the time of these tests."""
    folder = tmp_path_factory.mktemp("adapters") / "rough"
    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft = get_peft_model(reference.model, config)
    peft.save_pretrained(folder)
    reference.model = peft.unload()
    adapters_file.write_text(f"rough={folder}\n", encoding="utf-8")
    wait_until_served(direct, "rough")
    yield "rough"
    adapters_file.write_text("", encoding="utf-8")
    wait_until_gone(direct, "rough")


def test_a_model_with_an_adapter_answers_with_it(
    client: openai.OpenAI, direct: OrthrusClient, model: str, adapter: str
) -> None:
    name = f"{model}:{adapter}"
    messages: Any = [{"role": "user", "content": "Hi"}]
    text = direct.generate(PROMPT, adapter=adapter, **GREEDY).text
    assert text != direct.generate(PROMPT, **GREEDY).text
    assert client.completions.create(model=name, prompt=PROMPT, **GREEDY).choices[0].text == text
    answer = client.chat.completions.create(model=name, messages=messages, **GREEDY)
    assert answer.choices[0].message.content == direct.chat(messages, adapter=adapter, **GREEDY).text
    assert answer.model == name
    vector = client.embeddings.create(model=name, input="Hi").data[0].embedding
    np.testing.assert_allclose(vector, direct.embed("Hi", adapter=adapter)[0], rtol=0, atol=1e-6)
    assert np.abs(vector - direct.embed("Hi")[0]).max() > 1e-3


def test_an_adapter_that_came_later_is_listed_until_it_is_gone(
    client: openai.OpenAI, direct: OrthrusClient, model: str, adapter: str, adapters_file: Path
) -> None:
    def listed() -> list[str]:
        return [each.id for each in client.models.list()]

    wait_until(lambda: listed() == [model, f"{model}:{adapter}"])
    assert client.models.retrieve(f"{model}:{adapter}").id == f"{model}:{adapter}"
    adapters_file.write_text("", encoding="utf-8")
    wait_until_gone(direct, adapter)
    wait_until(lambda: listed() == [model])


def test_the_default_model_has_its_own_name(model: str) -> None:
    assert model == "SmolLM2-135M-Instruct"
