"""Measures the default model's embedding adapter on three retrieval sets: python tools/evaluate_adapter.py

Beside it: the model without an adapter (mean and last token), the teacher that the adapter learnt from, and BM25. The
sets are made of Debian packages, by apt, and of Python packages of this environment; training had none of their texts.
Prints a table in Markdown, and JSON on the last line; --readme puts the table into the adapter's README.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from orthrus_backend.default_model import EMBEDDING_ADAPTER
from orthrus_backend.params import EmbeddingParams
from tools.embedding_adapter.debian import DebianArchive
from tools.embedding_adapter.encoders import encoder
from tools.embedding_adapter.mixture import RetrievalSet, Texts
from tools.embedding_adapter.ranking import MEASURES, by_vectors, by_words, measures
from tools.embedding_adapter.teacher import teacher_folder

BEGIN, END = "<!-- table: python tools/evaluate_adapter.py --readme -->", "<!-- end of table -->"
Lines = dict[str, list[dict[str, float]]]  # measures of each set by the name of what ranked


def evaluate(
    adapter: Annotated[Path, typer.Option(help="Folder of the adapter.")] = EMBEDDING_ADAPTER,
    texts: Annotated[Path, typer.Option(help="Where Debian packages are kept.")] = Path("adapter-texts"),
    readme: Annotated[bool, typer.Option("--readme", help="Write the table into the adapter's README.md.")] = False,
) -> None:
    """Measure the adapter and what stands beside it."""
    sets = Texts(DebianArchive(texts.resolve())).sets()
    lines: Lines = {}
    for names, parameters, params in _ways(adapter):
        with encoder(**parameters) as encode:
            for one in sets:
                label = f"{' and '.join(names)}: {one.name}"
                queries, documents = (encode(part, params, label) for part in (one.queries, one.documents))
                parts = (np.split(vectors, len(names), axis=1) for vectors in (queries, documents))
                for name, asked, found in zip(names, *parts, strict=True):
                    lines.setdefault(name, []).append(measures(by_vectors(asked, found), one))
    lines["BM25"] = [measures(by_words(one.queries, one.documents), one) for one in sets]
    table = _table(sets, lines)
    print(table)
    if readme:
        file = adapter / "README.md"
        file.write_text(replaced(file.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(json.dumps({"sets": {one.name: one.sha256() for one in sets}, "measures": lines}))


def replaced(readme: str, table: str) -> str:
    """A README with the table between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README has no {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def _ways(adapter: Path) -> Iterator[tuple[tuple[str, ...], dict[str, str], EmbeddingParams]]:
    """Names, one for each pooling; parameters of the engine, and of each request."""
    both = EmbeddingParams(pooling=("mean", "last"), truncate="end")
    yield ("no adapter, mean", "no adapter, last token"), {"embedding_adapter": "none"}, both
    yield ("the adapter",), {"embedding_adapter": str(adapter)}, EmbeddingParams(truncate="end")
    yield ("all-MiniLM-L6-v2",), {"embedding_model": str(teacher_folder())}, EmbeddingParams(truncate="end")


def _table(sets: Sequence[RetrievalSet], lines: Lines) -> str:
    """All measures, one line for each set and way to rank."""
    table = [f"| set | ranked by | {' | '.join(MEASURES)} |", f"|---|---|{'---:|' * len(MEASURES)}"]
    for number, one in enumerate(sets):
        for place, (name, found) in enumerate(lines.items()):
            values = " | ".join(f"{found[number][measure]:.3f}" for measure in MEASURES)
            table.append(f"| {'' if place else one.name} | {name} | {values} |")
    table += ["", "| set | queries | documents | SHA-256 |", "|---|---:|---:|---|"]
    table += [f"| {one.name} | {len(one.queries)} | {len(one.documents)} | `{one.sha256()}` |" for one in sets]
    return "\n".join(table)


if __name__ == "__main__":
    typer.run(evaluate)
