"""Documents from files."""

import json
from pathlib import Path

import pytest
from orthrus_client.documents import read_documents

PARAGRAPHS = [f"Paragraph {n}. " + f"It says {n} many times. " * 12 for n in range(6)]  # about 300 characters each


def test_a_text_is_cut_between_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n\n".join([*PARAGRAPHS, "Short.", "Also short."]))
    documents = read_documents([file], chunk_characters=400)
    assert [document.text for document in documents[:6]] == [paragraph.strip() for paragraph in PARAGRAPHS]
    assert documents[6].text == "Short.\n\nAlso short."
    assert [document.id for document in documents] == [f"{file}#{n}" for n in range(1, 8)]


def test_a_long_paragraph_is_cut_between_sentences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"This is sentence {n}. " for n in range(100)))
    documents = read_documents([tmp_path / "a.txt"], chunk_characters=200)
    assert all(len(document.text) <= 200 and document.text.endswith(".") for document in documents)
    assert " ".join(document.text for document in documents).count("sentence") == 100


def test_json_lines_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    long = "x " * 2000
    file.write_text(json.dumps({"id": "one", "text": "é"}) + "\n\n" + json.dumps({"text": long}) + "\n")
    documents = read_documents([file])
    assert [(document.id, document.text) for document in documents] == [("one", "é"), (f"{file}#3", long)]


def test_a_folder_is_read_in_order_and_other_files_in_it_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.md", "a.txt", "sub/c.rst", "d.py"):
        (tmp_path / name).write_text(name)
    assert [document.text for document in read_documents([tmp_path])] == ["a.txt", "b.md", "sub/c.rst"]
    assert [document.text for document in read_documents([tmp_path / "d.py"])] == ["d.py"]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.txt", b"\xff", r"a\.txt: not UTF-8.*byte 0"),
        ("a.txt", b"  \n", "no text in it"),
        ("a.jsonl", b'{"text": "a"}\n{"text', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", b"[1]", r"line 1: not an object with a"),
        ("a.jsonl", b'{"text": 3}', r"line 1: not an object with a"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"line 1: not valid Unicode"),
        ("a.jsonl", b'{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}', "two documents have the id '1'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, fault: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=fault):
        read_documents([tmp_path / name])


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: No such file"):
        read_documents([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match=r"no \.txt"):
        read_documents([tmp_path])
    with pytest.raises(ValueError, match=r"chunk_characters.*0"):
        read_documents([tmp_path], chunk_characters=0)
