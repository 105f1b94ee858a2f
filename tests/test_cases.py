"""The list of cases, and what SECURITY.md promises, name tests that exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCUMENTS = (HERE / "README.md", HERE.parent / "SECURITY.md")
TEXT = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^ *((def|class) {name}\b|{name} = )", (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_case_names_a_test() -> None:
    cases = [line for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    assert len(cases) > 20
    assert all("::" in case for case in cases)
