"""perf_analyzer's files: its input data, and the times in its export."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadtest.perf_analyzer.profile import profile, read_export, write_inputs
from loadtest.workload import Vocabulary

MS = 1_000_000


def test_inputs_have_as_many_tokens_as_asked(tmp_path: Path, model: Path, vocabulary: Vocabulary) -> None:
    files = write_inputs(tmp_path, vocabulary, tokens=20, output_tokens=7)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = [step["text_input"]["content"][0] for step in json.loads(files["embed"].read_text())["data"]]
    steps = json.loads(files["generate"].read_text())["data"]
    for text in [*texts, *(step["text_input"][0] for step in steps)]:
        assert len(tokenizer.encode(text).ids) == 20
    assert len(set(texts)) == len(texts) == len(steps)
    assert {json.loads(step["sampling_parameters"][0])["max_tokens"] for step in steps} == {7}


def test_times_of_every_response_are_read(tmp_path: Path) -> None:
    """Two streams: first responses after 10 and 30 ms, then gaps of 5, 15 and 10 ms."""
    requests = [
        {"timestamp": 1000 * MS, "response_timestamps": [1010 * MS, 1015 * MS, 1030 * MS]},
        {"timestamp": 1100 * MS, "response_timestamps": [1130 * MS, 1140 * MS]},
        {"timestamp": 1900 * MS, "response_timestamps": []},  # not answered
    ]
    file = tmp_path / "export.json"
    file.write_text(json.dumps({"experiments": [{"experiment": {}, "requests": requests}]}))
    read = read_export(file)
    assert (read.requests, read.responses) == (2, 5)
    assert read.seconds == pytest.approx(0.14)
    assert read.first is not None
    assert read.first.mean == pytest.approx(0.02)
    assert read.last is not None
    assert read.last.mean == pytest.approx(0.035)
    assert read.between is not None
    assert (read.between.count, read.between.p50) == (3, pytest.approx(0.01))


def test_an_export_without_answers_is_refused() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        profile([])
