"""Requests made up from the gateway's own description of itself: none brings it down, and errors keep their form."""

from typing import Any

import numpy as np
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, example, given, settings
from orthrus_client import OrthrusClient
from schemathesis import GenerationMode

from tests.gateway.serving import RunningGateway

EXAMPLES = 30  # for each endpoint
PLAIN: dict[str, Any] = {  # which others are made up depends on the modules that are loaded; some are to be answered
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/embeddings": {"input": "Hi"},
}
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def brief(body: Any, model: str) -> Any:
    """The same request for the model that is there, and with little to compute: only its faults matter."""
    if not isinstance(body, dict):
        return body
    limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if isinstance(body.get(name), int)}
    length = {} if "input" in body or limits else {"max_tokens": 1}
    return body | limits | length | {"model": model}


@pytest.mark.parametrize("path", PLAIN)
def test_made_up_requests_do_no_harm(
    gateway: RunningGateway, client: openai.OpenAI, direct: OrthrusClient, model: str, path: str
) -> None:
    operation = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")[path]["POST"]
    seen = set()
    before = direct.embed("Hi")

    @BOUNDED
    @example(case=operation.Case(body={"model": model, **PLAIN[path]}, media_type="application/json"))
    @given(case=operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE))
    def send(case: schemathesis.Case) -> None:
        case.body = brief(case.body, model)
        answer = case.call(gateway.url, headers={"Authorization": f"Bearer {gateway.key}"}, timeout=60)
        seen.add(answer.status_code)
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code != 200:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    send()
    assert {200, 400} <= seen
    np.testing.assert_allclose(
        client.embeddings.create(model=model, input="Hi").data[0].embedding, before[0], atol=1e-6
    )
    log = gateway.log.read_text()
    assert "Traceback" not in log
    assert gateway.process.poll() is None
