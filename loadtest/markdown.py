"""Results as a Markdown table, and into a README between two marks. Reads the documents of `results.json`.

One table for each document: a row for each number of each scenario, a column for each target: the median of the rounds,
and the ratio to the baseline of the same round.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.report import LINES, PEAK, cell

BEGIN, END = "<!-- numbers: python -m loadtest readme -->\n", "<!-- end of numbers -->\n"
SHOWN = (
    *("requests", "embed.e2e.p50", "embed.e2e.p95"),
    *("generate.tokens_out", "generate.e2e.p50", "generate.e2e.p95", "generate.ttft.p50", "generate.tpot.p50"),
    *("query.requests", "query.e2e.p50", "query.e2e.p99", PEAK),
)


def markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    """All results, in their order."""
    return "\n".join(map(_section, documents))


def with_numbers(readme: str, numbers: str) -> str:
    """The text with what is between its marks replaced.

    Raises:
        ValueError: it has not each mark once, in order.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in tail or END in tail:
        raise ValueError(f"there must be a line {BEGIN.strip()!r} and after it a line {END.strip()!r}")
    return f"{head}{BEGIN}\n{numbers}\n{END}{tail}"


def read_all(folder: Path) -> list[Any]:
    """The documents in a folder, by file name.

    Raises:
        ValueError: there is none.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: there is no .json file in it")
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _section(document: Mapping[str, Any]) -> str:
    results, machine, settings = document["scenarios"], document["machine"], document["settings"]
    targets = results[0]["targets"]
    rows = [["", "", *(f"`{target}`" for target in targets)], ["---"] * (len(targets) + 2)]
    for result in results:
        rows += _rows(result)
    where = (
        f"{settings['model']} in {settings['dtype']} on {machine['cores']} cores of {machine['cpu']}"
        f" ({', '.join(machine['cpu_flags'])}), {machine['date']}, median of {settings['rounds']} interleaved rounds;"
        " x: ratio to the fastest of the others, which has none, in the same round."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{where}\n\n{table}\n"


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for line in LINES:
        targets = result["targets"].items()
        cells = [cell(target, line, label == result["baseline"], spread=False) for label, target in targets]
        if line.key in SHOWN and any(cells):
            rows.append(["", f"{line.label}{f' [{line.unit}]' if line.unit else ''}", *cells])
    rows[0][0] = f"`{result['scenario']['name']}`"
    return rows
