"""Tables of numbers get into a README between its marks."""

from pathlib import Path

import pytest

from loadtest.markdown import BEGIN, END, markdown, read_all, with_numbers

ROOT = Path(__file__).parents[2]
TEXT = f"before\n{BEGIN}old\n{END}after\n"


def test_what_is_between_the_marks_is_replaced_and_nothing_else() -> None:
    once = with_numbers(TEXT, "new\n")
    assert once == f"before\n{BEGIN}\nnew\n\n{END}after\n"
    assert with_numbers(once, "new\n") == once


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, TEXT + BEGIN, TEXT + END])
def test_a_readme_without_its_marks_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="there must be a line '<!-- numbers"):
        with_numbers(text, "new\n")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \.json file"):
        read_all(tmp_path)


def test_the_readme_shows_the_results_that_are_kept() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_numbers(readme, markdown(read_all(ROOT / "docs" / "results"))) == readme
