"""Reading from and writing to the terminal or a pipe."""

import sys
from pathlib import Path

import typer

STDIN = Path("-")


def read_input(file: Path | None, what: str) -> str:
    """All of `file`, or of stdin when there is none. Raises a usage error rather than wait for somebody to type."""
    if file is not None and file != STDIN:
        try:
            return file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 text (byte {error.start})") from None
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter(f"no {what}: give it as an argument or on stdin")
    return sys.stdin.read()


def write(text: str) -> None:
    """Writes to stdout at once."""
    sys.stdout.write(shown(text))
    sys.stdout.flush()


def shown(text: str) -> str:
    """`text` as stdout gets it: what would steer a terminal is replaced, for a model may write anything."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
