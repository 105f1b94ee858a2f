"""The results in Markdown, for people. Reads the document that JSON gets, so that both say the same."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tools.gpu_check.checks import MOST_LOGPROB_ERROR, MOST_VECTOR_ERROR

SHOWN = 5  # tests named for each reason
_ENDS = ("embedding_median", "embedding_last", "generation_median", "generation_last")

Row = Mapping[str, Any]


def markdown(document: Mapping[str, Any]) -> str:
    """All of it; a part that did not run has no section."""
    sections = [
        _head(document),
        _ceilings(document["ceilings"]),
        _tests(document["tests"]),
        _checks(document["checks"]),
        _speed(document["speed"], document["tiny"]),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(document: Mapping[str, Any]) -> str:
    machine, faults = document["machine"], document["faults"]
    cards = [f"{card['name']}, {_gib(card['memory'])}" for card in document["card"] if card["name"]]
    facts = {
        "Date": document["date"],
        "Device": ", ".join(cards) or document["device"],
        "CUDA": ", ".join(f"{card['cuda']}, cuDNN {card['cudnn']}" for card in document["card"] if card["cuda"]),
        "Processor": f"{machine['cpu']}, {machine['cores']} cores, {_gib(machine['memory_bytes'])}",
        "Versions": ", ".join(
            [f"Python {machine['python']}", *(f"{name} {v}" for name, v in machine["packages"].items() if v)]
        ),
        "Commit": machine["commit"],
        "Parts": ", ".join(document["parts"]),
    }
    lines = ["# Check of the engine on a device", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    if document["tiny"]:
        lines += ["", "Everything is tiny here: the check checks itself, and its numbers say nothing."]
    verdict = "\n".join(["Wrong:", "", *(f"- {fault}" for fault in faults)]) if faults else "Nothing is wrong."
    return "\n".join([*lines, "", verdict])


def _ceilings(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    table = _table(
        ("number format", "TFLOP/s of a product", "GB/s of a copy"),
        ((row["dtype"], _number(row["operations"] / 1e12), _number(row["bandwidth"] / 1e9)) for row in rows),
    )
    return f"## What the device does at most\n\n{table}"


def _tests(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    lines = ["## The engine's tests"]
    for row in rows:
        failed, left_out = (sum(map(len, row[kind].values())) for kind in ("failed", "left_out"))
        lines += ["", f"{row['passed']} passed, {failed} failed, {left_out} tests or files of tests were left out."]
        for kind, word in (("failed", "failed"), ("left_out", "left out")):
            if row[kind]:
                lines.append("")
            lines += [f"- {word}: {_some(names)}: {reason}" for reason, names in row[kind].items()]
    return "\n".join(lines)


def _checks(rows: Sequence[Row]) -> str:
    """The worst of all families for each number format and kind of work."""
    if not rows:
        return ""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["dtype"], row["work"]), []).append(row)
    table = _table(
        ("number format", "work", "models", "vectors", "bound", "log-probabilities", "bound", "wrong"),
        (
            (
                dtype,
                work,
                str(len(group)),
                _worst(row["vector_error"] for row in group),
                f"{MOST_VECTOR_ERROR[dtype]:g}",
                _worst(row["logprob_error"] for row in group),
                f"{MOST_LOGPROB_ERROR[dtype]:g}",
                str(sum(bool(row["fault"]) for row in group) or ""),
            )
            for (dtype, work), group in groups.items()
        ),
    )
    return (
        "## Against the models' own code on the CPU in float32\n\n"
        "Largest errors on tiny random models with the same weights: of vectors, relative; of log-probabilities of"
        f" tokens, absolute.\n\n{table}"
    )


def _speed(rows: Sequence[Row], tiny: bool) -> str:
    if not rows:
        return ""
    lines = [
        "## Speed",
        "",
        "Random weights. Medians; in brackets the least and the most. The bound is the least time that the same steps"
        " could take on this device: operations or bytes by formula, over the ceilings above.",
    ]
    for name in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == name]
        loaded = [row for row in mine if "work" not in row]
        lines += ["", f"### {name}{', tiny' if tiny else ''}, {mine[0]['dtype']}", ""]
        lines += [f"Made and checked in {row['seconds']:.1f} s. {row['fault']}".rstrip() + "\n" for row in loaded]
        lines += [_speed_table([row for row in mine if "work" in row])]
    return "\n".join(lines)


def _speed_table(rows: Sequence[Row]) -> str:
    head = ("work", "", "tokens/s", "ms", "bound, ms", "reached", "bound by", "steps", "scheduling", "notes")
    return _table(head, ((row["work"], row["variant"], *_measured(row)) for row in rows))


def _measured(row: Row) -> Iterator[str]:
    if row["fault"]:
        yield from [""] * 7
        yield row["fault"]
        return
    bound = row["roofline_seconds"]
    yield f"{row['tokens_per_second']:,.0f}"
    yield f"{_ms(row['seconds'])} ({_ms(row['least'])} to {_ms(row['most'])})"
    yield "" if bound is None else _ms(bound)
    yield "" if bound is None else f"{bound / row['seconds']:.0%}"
    yield row["limit"]
    yield str(row["steps"])
    yield f"{row['scheduling']:.1%}"
    yield _notes(row["details"])


def _notes(details: Mapping[str, float]) -> str:
    if not details:
        return ""
    ends = {name: _ms(details[f"{name}_seconds"]) for name in _ENDS}
    return (
        f"{details['mixed_steps']} steps of both; ms to the median and the last embedding"
        f" {ends['embedding_median']}, {ends['embedding_last']}, generation"
        f" {ends['generation_median']}, {ends['generation_last']}"
    )


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _some(tests: Sequence[str]) -> str:
    names = list(dict.fromkeys(name.partition("[")[0] for name in tests))  # without parameters
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _worst(errors: Iterable[float]) -> str:
    worst = max(errors)
    return f"{worst:.1e}" if worst else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return _number(seconds * 1e3)


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
