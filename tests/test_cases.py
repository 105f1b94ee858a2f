"""The list of cases names tests that exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", (HERE / "README.md").read_text(encoding="utf-8"))))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^(\s*def {name}\(|{name} = )", (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_case_names_a_test() -> None:
    cases = [line for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    assert len(cases) > 20
    assert all("::" in case for case in cases)
