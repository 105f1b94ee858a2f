"""What perf_analyzer is given and what it leaves: its input data, and the times in its profile export.

It prints one latency for each request; when each response of a stream came is in the export alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from loadtest.scenario import Mix
from loadtest.summary import Times
from loadtest.workload import Embedding, Generation, Vocabulary, items

INPUTS = 64  # different ones; it begins anew after the last
NANOSECONDS = 1e-9


def write_inputs(folder: Path, vocabulary: Vocabulary, tokens: int, output_tokens: int) -> dict[str, Path]:
    """The input data of both models, as files by model: texts and prompts of so many tokens."""
    sampling = json.dumps({"max_tokens": output_tokens, "temperature": 0, "ignore_eos": True})
    data: dict[str, list[dict[str, Any]]] = {"embed": [], "generate": []}
    for model, embed_share in (("embed", 1.0), ("generate", 0.0)):
        work = Mix(kind="mix", embed_share=embed_share, embed_tokens=tokens, prompt_tokens=tokens)
        for item in islice(items(work, vocabulary, [0]), INPUTS):
            match item:
                case Embedding():
                    data[model].append({"text_input": {"content": [item.text], "shape": [1]}})
                case Generation():
                    data[model].append(
                        {"text_input": [item.prompt], "stream": [True], "sampling_parameters": [sampling]}
                    )
    files = {model: folder / f"{model}.json" for model in data}
    for model, file in files.items():
        file.write_text(json.dumps({"data": data[model]}), encoding="utf-8")
    return files


@dataclass(frozen=True, slots=True)
class Profile:
    """What an export says of one model."""

    requests: int
    responses: int
    seconds: float  # from the first request to the last response
    first: Times | None  # to the first response
    last: Times | None  # to the last one
    between: Times | None  # between responses of the same request


def read_export(file: Path) -> Profile:
    """Raises `ValueError` if no request was answered."""
    (experiment,) = json.loads(file.read_text(encoding="utf-8"))["experiments"]
    return profile([request for request in experiment["requests"] if request.get("response_timestamps")])


def profile(requests: Sequence[dict[str, Any]]) -> Profile:
    """The times of requests that were answered, as the export has them, in nanoseconds."""
    if not requests:
        raise ValueError("no request was answered")
    sent = [request["timestamp"] for request in requests]
    came = [request["response_timestamps"] for request in requests]
    return Profile(
        requests=len(requests),
        responses=sum(map(len, came)),
        seconds=(max(times[-1] for times in came) - min(sent)) * NANOSECONDS,
        first=Times.of([(times[0] - start) * NANOSECONDS for start, times in zip(sent, came, strict=True)]),
        last=Times.of([(times[-1] - start) * NANOSECONDS for start, times in zip(sent, came, strict=True)]),
        between=Times.of([(later - earlier) * NANOSECONDS for times in came for earlier, later in pairwise(times)]),
    )
