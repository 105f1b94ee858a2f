"""Two engines in a plain tritonserver: what is stopped stops in both, and the face knows when they have died."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
import requests
from tritonclient.utils import InferenceServerException

from tests.faulty_server import FAULTY
from tests.plain_server import Plain, plain_server
from tests.server.test_continuations import balanced
from tests.server.test_embed import infer
from tests.server.test_ends import message, stop, stub
from tests.server.test_generate import events, post
from tests.server.test_mixed import metric, wait_for
from tests.server.test_shutdown import wait_until

ENGINES = ("orthrus_0_0", "orthrus_0_1")
# Tritons of 2026 ask a model whether it is ready; this one is asked by a request.
FACE = """
import numpy as np
import triton_python_backend_utils as pb_utils
from orthrus_backend.triton import embed_face


class TritonPythonModel(embed_face.TritonPythonModel):
    def execute(self, requests):
        for request in requests:
            if request.request_id() != "ready?":
                super().execute([request])
                continue
            ready = pb_utils.Tensor("embedding", np.array([[self.is_ready()]], dtype=np.float32))
            answer = pb_utils.InferenceResponse([ready])
            request.get_response_sender().send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def two(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    folder = tmp_path_factory.mktemp("two")
    model = shutil.copytree(small_model, folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    parameters = {"model": str(model), "kv_memory": "32MiB", "threads": "1", "max_queued_tokens": "100000000"}
    models = {"orthrus": FAULTY, "orthrus_embed": FACE}
    with plain_server(folder / "log", parameters, ["embed", "generate"], instances=2, models=models) as plain:
        yield plain


def wait_until_both_work(plain: Plain, kind: str) -> None:
    def both() -> bool:
        return all(metric(plain.server, "orthrus_requests_running", engine=name, kind=kind) for name in ENGINES)

    wait_until(both)


def long_texts() -> list[str]:
    """Some seconds of work, of which nothing is known from before."""
    return [f"{uuid4()} {'many words ' * 1000}" for _ in range(16)]


def ready(plain: Plain) -> bool:
    """What the face says that it is."""
    body = {"id": "ready?", "inputs": [], "outputs": [{"name": "embedding"}]}
    answer = requests.post(f"http://{plain.server.http}/v2/models/orthrus_embed/infer", json=body, timeout=30).json()
    return bool(answer["outputs"][0]["data"][0])


def embedding(plain: Plain) -> str:
    """The error that a text to embed gets; empty if it is embedded."""
    try:
        assert infer(plain.server, "grpc", ["a cat"])[0].shape == (1, 64)
    except InferenceServerException as error:
        return str(error)
    return ""


def test_stop_ends_what_carries_its_id_in_both_engines_and_no_other(two: Plain) -> None:
    def reason(name: str) -> str:
        body = {"id": name, "text_input": "Once", "stream": True, "max_tokens": 8000, "ignore_eos": True}
        answer = post(two.server, body | {"return_finish_reason": True}, path="generate_stream")
        return events(answer)[-1]["finish_reason"]

    with ThreadPoolExecutor(16) as threads:
        same, others = ([threads.submit(reason, name) for _ in range(8)] for name in ("same", "other"))
        wait_until_both_work(two, "generate")
        wait_for(two.server, "orthrus_requests_running", 16, kind="generate")
        stop(two.server, "same")
        assert [each.result(60) for each in same] == ["cancelled"] * 8
        wait_for(two.server, "orthrus_requests_running", 8, kind="generate")
        stop(two.server, "other")
        assert [each.result(60) for each in others] == ["cancelled"] * 8
    balanced(two.server)


def test_the_face_tells_both_engines_that_its_callers_have_gone(two: Plain) -> None:
    with stub(two.server) as service:
        calls = [service.ModelInfer.future(message("orthrus_embed", text_input=long_texts())) for _ in range(8)]
        wait_until_both_work(two, "embed")
        for call in calls:
            call.cancel()
        balanced(two.server)
    for name in ENGINES:
        assert metric(two.server, "orthrus_requests_total", engine=name, kind="embed", outcome="cancelled") > 0


def test_the_face_answers_when_engines_die_and_lives_on_with_new_ones(two: Plain) -> None:
    assert ready(two)
    with stub(two.server) as service:
        calls = [service.ModelInfer.future(message("embed", text_input=long_texts())) for _ in range(8)]
        wait_until_both_work(two, "embed")
        engines = [each for each in two.triton.children() if any("/orthrus/1/" in word for word in each.cmdline())]
        (left,) = [name for name in ENGINES if name not in engines[0].cmdline()]
        cancelled = metric(two.server, "orthrus_requests_total", engine=left, kind="embed", outcome="cancelled")
        engines[0].kill()
        killed = time.monotonic()
        errors = [call.exception(30) for call in calls]
        assert time.monotonic() - killed < 5
    assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
    assert {error.details() for error in errors} == {"in ensemble 'embed', unavailable: an engine has died"}
    assert not ready(two)

    def dropped() -> bool:
        """What had gone to the other engine, for whose answers nobody waits any more."""
        now = metric(two.server, "orthrus_requests_total", engine=left, kind="embed", outcome="cancelled")
        return now > cancelled

    wait_until(dropped)
    wait_until(lambda: embedding(two) == "")  # of the engine that is left; for the other one Triton answers, late
    wait_until(lambda: "made to fail" in post(two.server, {"id": "fail", "text_input": "a cat"}).text)  # the one left
    wait_until(lambda: "an engine has died" in embedding(two))
    begun = time.monotonic()
    assert embedding(two) == "[StatusCode.UNAVAILABLE] in ensemble 'embed', unavailable: an engine has died"
    assert time.monotonic() - begun < 0.9  # Triton takes a second to see it
    two.control("unload")
    two.control("load")
    wait_until(lambda: ready(two))
    assert embedding(two) == ""
    two.control("unload")
    wait_until(lambda: embedding(two).endswith("Model 'orthrus' is not ready."))
    assert embedding(two).startswith("[StatusCode.UNAVAILABLE] ")
    assert ready(two)  # nobody has died
