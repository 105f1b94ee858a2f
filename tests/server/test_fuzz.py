"""Made-up calls over every protocol: each is answered, none does harm, and what is right is right afterwards.

ORTHRUS_FUZZ=5000 in the environment makes so many of them, other ones each time; without it there are a few, always the
same.
"""

import os
import re
import time

import grpc
import numpy as np
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.reference import Reference
from tests.server.made_up import INPUTS, MODELS, Call, calls
from tests.server.test_continuations import balanced
from tests.server.test_embed import infer
from tests.server.test_generate import GREEDY, PROMPT, post
from tests.server.test_mixed import metric
from tests.server.wire import STREAMS, WAYS, Heard, Way
from tests.serving import RunningServer

MANY = int(os.environ.get("ORTHRUS_FUZZ", "0"))
BOUNDED = settings(
    max_examples=MANY or 150,
    deadline=None,  # each call has a limit of its own
    derandomize=not MANY,
    database=None,
    phases=[Phase.generate],  # a server that has died makes no example smaller
    suppress_health_check=list(HealthCheck),
)
OUR_FAULTS = r"Failed to process|internal error|failed: |Traceback|Error\b.*\bobject|NoneType"
ENDED_AND_RECEIVED = ("orthrus_requests_total", "orthrus_requests_received_total")
GONE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, 503)


@st.composite
def calls_and_ways(draw: st.DrawFn) -> tuple[Call, Way]:
    """A call, and mostly a way by which its model answers at all."""
    call = draw(calls())
    some = STREAMS if call.model in ("generate", "orthrus") and draw(st.integers(0, 9)) else WAYS
    return call, draw(st.sampled_from(some))


def test_the_made_up_inputs_are_those_of_the_contract(server: RunningServer) -> None:
    declared = {}
    for model in MODELS:
        for tensor in requests.get(f"http://{server.http}/v2/models/{model}", timeout=60).json()["inputs"]:
            declared[tensor["name"]] = tensor["datatype"]
    assert {name: datatype for name, (datatype, _) in INPUTS.items()} == declared


@pytest.mark.timeout(300 + MANY)
def test_made_up_calls_do_no_harm(server: RunningServer, reference: Reference) -> None:
    balanced(server)
    processes = {process.pid for process in server.processes()}
    told = len(server.log.read_text())
    heard: list[Heard] = []

    @BOUNDED
    @given(sent=calls_and_ways())
    def send(sent: tuple[Call, Way]) -> None:
        call, way = sent
        note(f"{way.__name__}: {call}")
        heard.append(way(server, call))
        assert_an_answer(heard[-1])

    send()
    assert {process.pid for process in server.processes()} == processes
    assert "Traceback" not in server.log.read_text()[told:]
    balanced(server)
    for kind in ("embed", "generate"):
        counts = [metric(server, name, kind=kind) for name in ENDED_AND_RECEIVED]
        for _ in range(50):  # counts are published one by one, and a call that was left may arrive late
            if counts[0] == counts[1]:
                break
            time.sleep(0.2)
            counts = [metric(server, name, kind=kind) for name in ENDED_AND_RECEIVED]
        assert counts[0] == counts[1], kind
    answered = [one for one in heard if one.error is None]
    assert len(answered) > len(heard) / 20  # noise alone would show little
    body = {"text_input": PROMPT, "exclude_input_in_output": True, **GREEDY}
    assert post(server, body).json()["text_output"] == reference.greedy_text(PROMPT, GREEDY["max_tokens"])
    np.testing.assert_allclose(infer(server, "grpc", [PROMPT])[0][0], reference.embed(PROMPT), rtol=0, atol=1e-5)


def assert_an_answer(heard: Heard) -> None:
    """Either what was asked for, complete and in its form, or an error that says what is wrong."""
    if heard.error is not None:
        assert heard.status not in GONE, heard.error
        assert re.search(r"\w{3}", heard.error), heard.error
        assert not re.search(OUR_FAULTS, heard.error), heard.error
    for outputs in heard.responses:
        assert np.isfinite(outputs.get("embedding", 0)).all()
        for value in np.concatenate([values.ravel() for values in outputs.values() if values.dtype.hasobject] or [[]]):
            value.decode()  # raises where it is no text
