"""Trains the embedding adapter of the default model: python tools/train_adapter.py FOLDER

Contrastive learning with in-batch negatives, and distillation of the similarities that all-MiniLM-L6-v2 sees. Texts
come from Debian packages, by apt, and from the Python packages of this environment (see tools/embedding_adapter).
Stopped, it goes on where it was when it is called again with the same folder. At the end FOLDER/adapter is what
`orthrus serve --embedding-adapter` takes, and FOLDER/log.jsonl has a line for every step.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from tools.embedding_adapter.batches import Batches
from tools.embedding_adapter.debian import DebianArchive
from tools.embedding_adapter.folder import save_adapter
from tools.embedding_adapter.mixture import Texts
from tools.embedding_adapter.pairs import Pair
from tools.embedding_adapter.run import Run, Settings

WEIGHTS = {"packages": 0.15, "synsets": 0.35, "words": 0.15, "terms": 0.05, "manuals": 0.15, "functions": 0.15}


def train(
    folder: Annotated[Path, typer.Argument(help="Where checkpoints, the log and the adapter go.")],
    steps: Annotated[int, typer.Option(min=1)] = 320,
    batch: Annotated[int, typer.Option(min=8, help="Pairs in a step.")] = 96,
    rank: Annotated[int, typer.Option(min=1)] = 8,
    pooling: Annotated[Literal["mean", "last"], typer.Option(help="Of the last hidden states.")] = "mean",
    learning_rate: Annotated[float, typer.Option(min=0.0)] = 5e-4,
    distillation: Annotated[float, typer.Option(min=0.0, help="Weight beside the contrastive loss.")] = 1.0,
    longest: Annotated[int, typer.Option(min=8, help="Tokens of a text that are read.")] = 64,
    prompt: Annotated[str, typer.Option(help="What stands before every text, and is not pooled.")] = "Text:\n",
    weight: Annotated[
        list[str] | None, typer.Option(help=f"SOURCE=SHARE of the steps, instead of {WEIGHTS}; repeat it.", metavar="")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="An adapter's folder to begin with, of the same rank.")] = None,
    seed: int = 1,
    threads: Annotated[int, typer.Option(help="0 for all cores.")] = 0,
    texts: Annotated[Path, typer.Option(help="Where Debian packages are kept.")] = Path("adapter-texts"),
) -> None:
    """Train, or go on training, until all steps are done."""
    weights = source_weights(weight or [])
    begin = str(start or "")
    settings = Settings(steps, batch, rank, pooling, learning_rate, distillation, longest, seed, prompt, weights, begin)
    torch.set_num_threads(threads or torch.get_num_threads())
    folder.mkdir(parents=True, exist_ok=True)
    archive = DebianArchive(texts.resolve())
    sources = _sources(folder / "pairs.json", archive)
    sizes = {name: len(pairs) for name, pairs in sources.items()}
    print(f"pairs: {sizes}", file=sys.stderr)
    try:
        run = Run(folder, settings, Batches(sources, weights, batch, seed))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    run.go_on()
    save_adapter(folder / "adapter", run.student.model, pooling, prompt)
    about = {"settings": asdict(settings), "pairs": sizes, "packages": archive.versions()}
    (folder / "run.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def source_weights(given: Sequence[str]) -> dict[str, float]:
    """The weight of each source: those given, else `WEIGHTS`.

    Raises:
        BadParameter: one is not NAME=NUMBER, or names no source.
    """
    if not given:
        return WEIGHTS
    weights = {}
    for one in given:
        name, _, value = one.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{one!r} is not SOURCE=NUMBER") from None
        if name not in WEIGHTS or weights[name] < 0:
            raise typer.BadParameter(f"{one!r}: no negative numbers, and sources are {', '.join(WEIGHTS)}")
    return weights


def _sources(file: Path, archive: DebianArchive) -> dict[str, list[Pair]]:
    """Pairs by source; those that the folder was begun with, if it was."""
    if not file.is_file():
        print("reading texts: some minutes, once", file=sys.stderr)
        found = {name: [astuple(pair) for pair in pairs] for name, pairs in Texts(archive).training().items()}
        file.write_text(json.dumps(found), encoding="utf-8")
    kept = json.loads(file.read_text(encoding="utf-8"))
    return {name: [Pair(*pair) for pair in pairs] for name, pairs in kept.items()}


if __name__ == "__main__":
    typer.run(train)
