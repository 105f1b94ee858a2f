"""Checks and measures the engine on a device, and leaves what it found as JSON and Markdown.

Made for a machine with a GPU and little else: Python, PyTorch, transformers and what the engine itself imports. No
network is needed, no Triton and no model on a disk. Parts run one after the other, each in a process of its own; the
files are written anew after every result, so that nothing is lost when a later one fails.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from loadtest.machine import machine
from tools.gpu_check import checks, device, engine_tests, models, speed
from tools.gpu_check.process import PartError, run_apart
from tools.gpu_check.report import markdown

PARTS = ("tests", "checks", *models.NAMES)
PARTS_ON_CPU = PARTS[:3]  # unless told otherwise: the other models are too large
# Where each kind of row is in the document.
_KINDS = {
    device.Card: "card",
    device.Ceiling: "ceilings",
    engine_tests.Outcomes: "tests",
    checks.Check: "checks",
    speed.Loaded: "speed",
    speed.Speed: "speed",
}


class Device(StrEnum):
    """Where the engine runs; which of several GPUs, CUDA_VISIBLE_DEVICES says."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Results:
    """What is known so far, as the two files in a folder."""

    def __init__(self, folder: Path, device_name: str, tiny: bool, parts: list[str]) -> None:
        self._folder = folder
        self.document: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": device_name,
            "tiny": tiny,
            "parts": parts,
            "machine": machine(),
            "faults": [],
            **{kind: [] for kind in _KINDS.values()},
        }

    def run(self, part: str, work: Callable[[], Iterator[Any]]) -> list[Any]:
        """Run a part and keep its rows; returns them, also when it fails after some."""
        print(f"{part} ...", file=sys.stderr)
        rows = []
        try:
            for row in run_apart(work, anew=self.document["device"] != Device.CPU):
                rows.append(row)
                self.document[_KINDS[type(row)]].append(asdict(row))
                if row.fault:
                    self._note(part, row.fault)
                self._write()
        except PartError as error:
            self._note(part, str(error))
            self._write()
        return rows

    def _note(self, part: str, fault: str) -> None:
        self.document["faults"].append(f"{part}: {fault}")

    def _write(self) -> None:
        (self._folder / "gpu-check.json").write_text(json.dumps(self.document, indent=1), encoding="utf-8")
        (self._folder / "gpu-check.md").write_text(markdown(self.document), encoding="utf-8")


def main(
    device_name: Annotated[Device, typer.Option("--device", help="Where the engine runs.")] = Device.AUTO,
    tiny: Annotated[bool, typer.Option("--tiny", help="In small shapes that say nothing: checks the check.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PART", help=f"Of {', '.join(PARTS)}; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results.", show_default="gpu-check-results/TIME")] = None,
) -> None:
    """Run the engine's tests, compare it with the CPU, measure it beside a roofline; fails if anything is wrong."""
    if strangers := sorted(set(only or ()) - set(PARTS)):
        sys.exit(f"error: --only {strangers[0]!r} is none of {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, ends what is started here
    name = device_name.value
    usual = PARTS_ON_CPU if device.is_cpu(name) and not tiny else PARTS
    chosen = [part for part in PARTS if part in (only or usual)]
    folder = out or Path("gpu-check-results") / datetime.now().strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder, name, tiny, chosen)
    if not results.run("device", partial(device.describe, name)):
        chosen = []
    ceilings: dict[str, device.Ceiling] = {}
    if set(chosen) & set(models.NAMES):
        ceilings |= {row.dtype: row for row in results.run("ceilings", partial(device.measure, name, tiny))}
    for part in chosen:
        results.run(part, _work(part, name, tiny, ceilings))
    print(markdown(results.document))
    print(f"{folder}/gpu-check.json and .md", file=sys.stderr)
    if faults := results.document["faults"]:
        sys.exit(f"FAILED: {len(faults)} faults, the first of them: {faults[0]}")


def _work(
    part: str, device_name: str, tiny: bool, ceilings: Mapping[str, device.Ceiling]
) -> Callable[[], Iterator[Any]]:
    if part == "tests":
        return partial(engine_tests.run, device_name, tiny)
    if part == "checks":
        return partial(checks.check, device_name, tiny)
    return partial(speed.measure, part, device_name, tiny, ceilings)


if __name__ == "__main__":
    typer.run(main)
