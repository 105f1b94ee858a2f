"""Functions of installed Python packages, with what their docstrings say. Nothing is imported."""

import ast
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from tools.embedding_adapter.pairs import Pair, one_line, shortened

_DOCSTRING = range(30, 400)  # characters of its first paragraph
_MOST = 500  # characters of a function


def of_distribution(name: str) -> Iterator[Pair]:
    """Functions of a distribution in this environment.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    installed: Distribution = distribution(name)
    for file in sorted(installed.files or [], key=str):
        if file.suffix == ".py" and "test" not in str(file):
            yield from of_file(Path(str(installed.locate_file(file))), name)


def of_standard_library() -> Iterator[Pair]:
    """Functions of Python's own library."""
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in str(path.relative_to(folder)):
            yield from of_file(path, "stdlib")


def of_file(path: Path, group: str) -> Iterator[Pair]:
    """Functions of one file; none where it is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
            continue
        summary = one_line((ast.get_docstring(node) or "").split("\n\n")[0])
        if len(summary) in _DOCSTRING and summary.isascii():
            node.body = node.body[1:]
            node.decorator_list = []
            yield Pair(summary, shortened(one_line(ast.unparse(node)), _MOST), group)
