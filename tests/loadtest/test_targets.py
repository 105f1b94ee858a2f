"""Targets by name: what is refused, what is missing, and that the pair of transformers answers as the engine does."""

import asyncio
import weakref
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from loadtest.targets.catalogue import read_target
from loadtest.targets.orthrus import Orthrus
from loadtest.targets.orthrus_engine import OrthrusEngine
from loadtest.targets.target import Settings, Target, TargetError
from orthrus_backend.engine import Engine


def test_a_name_carries_options() -> None:
    target = read_target("orthrus:policy=fcfs,token_budget=256")
    assert (target.name, target.options) == ("orthrus", {"policy": "fcfs", "token_budget": "256"})
    assert target.label == "orthrus:policy=fcfs,token_budget=256"


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("tgi", "unknown target 'tgi'; known are orthrus, orthrus-engine, vllm-pinned"),
        ("orthrus:fcfs", "'fcfs' is not of the form name=value"),
    ],
)
def test_an_unknown_name_is_refused(label: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_target(label)


@pytest.mark.parametrize("name", ["vllm-pinned", "vllm-shared", "vllm-embed-only", "vllm-generate-only"])
def test_a_missing_vllm_says_how_to_install_it(
    name: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path))
    with pytest.raises(TargetError, match="python -m loadtest install vllm"):
        read_target(name).make(settings)


def test_options_of_orthrus_are_those_of_its_command_line(settings: Settings) -> None:
    target = Orthrus(settings, {"policy": "fcfs", "patience": "2", "request_log": "true"})
    assert "--policy=fcfs" in target._arguments
    assert target._arguments[-2:] == ["--set", "patience=2"]
    assert "--request-log" in target._arguments


async def answers(target: Target) -> tuple[int, str, int, int, list[psutil.Process]]:
    """Of one embedding and one generation; another generation is left before its end."""
    await target.start()
    try:
        tokens = await target.embed("w20 w30 w40")
        async with aclosing(target.generate("w21 w22", 100)) as left:
            await anext(left)
        pieces = [piece async for piece in target.generate("w23 w24 w25", 12)]
        return (
            tokens,
            "".join(piece.text for piece in pieces).strip(),
            sum(piece.tokens for piece in pieces),
            max(piece.tokens_in for piece in pieces),
            list(target.processes()),
        )
    finally:
        await target.stop()


def test_the_transformers_pair_answers_as_the_engine_does_and_leaves_nothing(settings: Settings) -> None:
    own = asyncio.run(answers(read_target("orthrus-engine").make(settings)))
    pair = asyncio.run(answers(read_target("transformers-pair").make(settings)))
    assert own[:4] == pair[:4]
    assert own[0] == 4
    assert own[2:4] == (12, 4)
    assert len(pair[4]) >= 2
    assert not any(process.is_running() for process in pair[4])


def test_an_engine_that_was_stopped_takes_no_memory(settings: Settings) -> None:
    async def run() -> weakref.ref[Engine]:
        target = OrthrusEngine(settings, {})
        await target.start()
        assert await target.embed("w20 w30") == 3
        assert target._service is not None
        engine = weakref.ref(target._service.engine)
        await target.stop()
        return engine

    assert asyncio.run(run())() is None


def test_a_server_that_does_not_start_is_told_with_its_log(settings: Settings) -> None:
    with pytest.raises(TargetError, match=r"(?s)ended with status 2.*policy.*sometimes"):
        asyncio.run(read_target("orthrus:policy=sometimes").make(settings).start())
