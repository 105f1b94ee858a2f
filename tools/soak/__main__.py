"""Sends thousands of requests of both kinds, many of them cancelled, late or wrong, and keeps a ledger of the answers.

Starts an `orthrus serve` of its own. Fails unless every request was answered exactly once, the server's books balance,
nothing is left behind, its memory no longer grows, and it answers afterwards what it answered before.
"""

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from typing import Annotated, Never

import numpy as np
import psutil
import typer
from orthrus_client import OrthrusClient
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from client.examples.local_server import Endpoints, local_server
from tools.soak.calls import Answer, Call, Caller, Fate
from tools.soak.watch import resident_bytes, settled

STAGES = 10  # memory is measured after each
WARM_STAGES = 2  # from the end of these on, memory may grow ...
MOST_GROWTH = 0.05  # ... by this share
FATES = {Fate.FINISH: 50, Fate.LEAVE: 12, Fate.STOP: 12, Fate.TIMEOUT: 13, Fate.BAD: 13}  # weights
PROMPT = "The capital of France is"

Ledger = Counter[tuple[str, Fate, Answer]]


def main(
    requests: Annotated[int, typer.Option(min=STAGES, help="Requests in all.")] = 10_000,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 48,
    seed: Annotated[int, typer.Option(help="What the calls are drawn from.")] = 0,
) -> None:
    """Run the soak against a server of its own; the last line on stdout is the ledger as JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, ends the server that is started here
    try:
        with local_server("--max-model-len=1024") as server:
            faults = soak(server, requests, concurrency, seed)
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    if faults:
        sys.exit("FAILED: " + "; ".join(faults))


def soak(server: Endpoints, requests: int, concurrency: int, seed: int) -> list[str]:
    """Run all stages; returns what did not hold."""
    ledger: Ledger = Counter()
    processes = psutil.Process().children(recursive=True)
    before, expected, memory = settled(server.metrics), _probe(server), []
    draw = random.Random(seed)
    with tqdm(total=requests, unit="req", mininterval=1) as progress:
        for stage in range(STAGES):
            count = requests * (stage + 1) // STAGES - requests * stage // STAGES
            asyncio.run(_stage(server, ledger, count, concurrency, draw, progress))
            memory.append(resident_bytes(processes))
            progress.set_postfix(memory=f"{memory[-1] / 2**20:.0f} MiB")
    state, after = settled(server.metrics), _probe(server)
    growth = memory[-1] / memory[WARM_STAGES - 1] - 1
    _print(ledger)
    faults = {
        f"{_total(ledger, Answer.LOST)} answers lost": _total(ledger, Answer.LOST) > 0,
        f"the books do not balance: {state}": not state.balanced,
        f"memory grew by {growth:.1%}, more than {MOST_GROWTH:.0%}": growth > MOST_GROWTH,
        "an answer after the soak is not the one before": after != expected,
    }
    document = {
        "requests": ledger.total(),
        "answers": {answer.value: _total(ledger, answer) for answer in Answer},
        "received": state.received - before.received,
        "ended": dict(state.ended - before.ended),
        "memory_mib": [round(size / 2**20) for size in memory],
        "growth": round(growth, 4),
    }
    print(json.dumps(document))
    return [fault for fault, holds in faults.items() if holds]


async def _stage(
    server: Endpoints, ledger: Ledger, count: int, concurrency: int, draw: random.Random, progress: "tqdm[Never]"
) -> None:
    caller, slots = Caller(server.http, server.grpc), asyncio.Semaphore(concurrency)

    async def one(call: Call) -> None:
        async with slots:
            ledger[call.way, call.fate, await caller.make(call)] += 1
        progress.update()

    ways = list(caller.ways)
    fates = draw.choices(list(FATES), weights=list(FATES.values()), k=count)
    async with asyncio.TaskGroup() as tasks:
        for fate in fates:
            tasks.create_task(one(Call(draw.choice(ways), fate, draw.getrandbits(32))))
    await caller.close()


def _probe(server: Endpoints) -> tuple[str, bytes]:
    """A greedy answer, and a vector to three digits."""
    with OrthrusClient(server.grpc) as client:
        text = client.generate(PROMPT, max_tokens=8, temperature=0).text
        return text, np.round(client.embed(PROMPT), 3).tobytes()


def _total(ledger: Ledger, answer: Answer) -> int:
    return sum(count for (_, _, given), count in ledger.items() if given is answer)


def _print(ledger: Ledger) -> None:
    table = Table("way", "meant to", *(answer.value for answer in Answer), title="Requests by answer")
    for way in sorted({way for way, _, _ in ledger}):
        for fate in Fate:
            table.add_row(way, fate.value, *(str(ledger[way, fate, answer] or "") for answer in Answer))
        table.add_section()
    table.add_row("all", "", *(str(_total(ledger, answer)) for answer in Answer))
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
