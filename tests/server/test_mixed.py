"""Many requests of both kinds at once: all answered correctly, in shared steps, and nothing left behind."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.reference import Reference, prompts, texts
from tests.server.test_embed import infer
from tests.serving import RunningServer


def metric(server: RunningServer, name: str, **labels: str) -> float:
    """Sum of a metric over all series that carry the labels."""
    page = requests.get(f"http://{server.metrics}/metrics", timeout=10).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_for(server: RunningServer, name: str, value: float, within: float = 60, **labels: str) -> None:
    deadline = time.monotonic() + within  # a step may be long, where others use the machine too
    while (now := metric(server, name, **labels)) != value and time.monotonic() < deadline:
        time.sleep(0.2)
    assert now == value


def test_64_mixed_requests_at_once_are_all_right(server: RunningServer, reference: Reference) -> None:
    before = metric(server, "orthrus_steps_total", composition="mixed")
    asked, embedded = prompts()[:8], texts(8)

    def generate(prompt: str) -> str:
        body = {"text_input": prompt, "max_tokens": 16, "temperature": 0, "exclude_input_in_output": True}
        answer = requests.post(f"http://{server.http}/v2/models/generate/generate", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()["text_output"]

    def embed(text: str) -> np.ndarray:
        return infer(server, "grpc", [text])[0][0]

    with ThreadPoolExecutor(64) as threads:
        vectors, answers = [], []
        for n in range(32):
            answers.append(threads.submit(generate, asked[n % 8]))
            vectors.append(threads.submit(embed, embedded[n % 8]))
        expected_answers = [reference.greedy_text(prompt, 16) for prompt in asked]
        expected_vectors = [reference.embed(text) for text in embedded]
        for n in range(32):
            assert answers[n].result(120) == expected_answers[n % 8]
            np.testing.assert_allclose(vectors[n].result(120), expected_vectors[n % 8], rtol=0, atol=1e-5)
    wait_for(server, "orthrus_requests_running", 0)
    wait_for(server, "orthrus_requests_waiting", 0)
    assert metric(server, "orthrus_kv_blocks", state="used") == 0
    assert metric(server, "orthrus_steps_total", composition="mixed") > before
    assert metric(server, "orthrus_requests_received_total") == metric(server, "orthrus_requests_total")
