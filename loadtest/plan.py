"""A whole comparison, or a single run: every target in every round, then tables, plots, and one JSON document.

Progress goes to stderr, results to stdout.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.comparison import compare
from loadtest.machine import machine
from loadtest.measure import Run, fit, measure
from loadtest.plots import plot
from loadtest.report import faults, table
from loadtest.scenario import Scenario
from loadtest.targets.catalogue import TargetName
from loadtest.targets.target import Settings
from loadtest.workload import Vocabulary

TABLE_WIDTH = 160


def say(what: str) -> None:
    """Tell how far it is."""
    print(what, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and where the results go."""

    scenarios: Sequence[Scenario]
    targets: Sequence[TargetName]
    settings: Settings
    rounds: int
    seed: int
    baseline: str | None
    output: Path

    def run(self) -> None:
        """Measure, print the results, and leave them in the output folder.

        Raises:
            ValueError: the options of a target cannot be, or the model has no tokenizer to make texts with.
            TargetError, BrokenTargetError: what `measure` raises.
        """
        for target in self.targets:
            fit(target, self.settings, self.scenarios)  # so that what cannot be shows now, not after an hour
        vocabulary = Vocabulary.of_model(self.settings.model)
        runs = asyncio.run(self._measured(vocabulary))
        results = []
        for scenario in self.scenarios:
            of_scenario = {label: [run for run in own if run.scenario is scenario] for label, own in runs.items()}
            results.append(compare(of_scenario, self.baseline))
            plot(of_scenario, results[-1], self.output)
            Console(width=TABLE_WIDTH).print(table(results[-1]))
            for fault in faults(results[-1]):
                say(f"warning: {fault}")
        document = json.dumps(self._document(results))
        (self.output / "results.json").write_text(f"{document}\n", encoding="utf-8")
        say(f"results are in {self.output}")
        print(document)

    async def _measured(self, vocabulary: Vocabulary) -> dict[str, list[Run]]:
        """Runs by target: in each round, every target once."""
        runs: dict[str, list[Run]] = {target.label: [] for target in self.targets}
        for number in range(self.rounds):
            for target in self.targets:

                def tell(what: str, at: int = number) -> None:
                    say(f"round {at + 1} of {self.rounds}: {what}")

                # Every round has texts of its own, so that no cache knows them; they are the same for all targets.
                own = await measure(target, self.settings, self.scenarios, vocabulary, self.seed + number, tell)
                runs[target.label] += own
        return runs

    def _document(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        settings = self.settings
        return {
            "machine": machine(),
            "settings": {
                "model": settings.model.name,
                "dtype": settings.dtype,
                "max_model_len": settings.max_model_len,
                "max_running": settings.max_running,
                "kv_memory": settings.kv_memory,
                "seed": self.seed,
                "rounds": self.rounds,
            },
            "scenarios": results,
        }
