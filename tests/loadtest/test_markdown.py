"""Tables of numbers get into a README between its marks."""

from pathlib import Path

import pytest

from loadtest.markdown import BEGIN, END, read_all, with_numbers

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
