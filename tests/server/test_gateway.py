"""A gateway before the whole default model, which knows when its answer is at an end."""

from pathlib import Path

import openai

from tests.gateway.serving import running_gateway
from tests.serving import RunningServer


def test_without_a_limit_an_answer_comes_to_its_own_end(server: RunningServer, tmp_path: Path) -> None:
    with (
        running_gateway(server.grpc, tmp_path / "log") as gateway,
        openai.OpenAI(base_url=gateway.api, api_key="none", max_retries=0) as client,
    ):
        (model,) = client.models.list().data
        answer = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": "Name a city in Italy."}], temperature=0
        )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 16  # the server's default for prompts
