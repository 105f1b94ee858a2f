"""Texts have as many tokens as they are said to have, and the same seed makes the same requests."""

from itertools import islice
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from loadtest.scenario import Mix, Retrieval
from loadtest.workload import Embedding, Generation, Question, Vocabulary, items
from orthrus_backend.default_model import ensure_default_model

MIXED = Mix(kind="mix", embed_share=0.3, embed_tokens=[5, 90], prompt_tokens=[5, 90], output_tokens=[1, 9])
ASKED = Retrieval(
    kind="retrieval",
    rounds=2,
    question_tokens=[15, 25],
    documents=[1, 3],
    document_tokens=20,
    output_tokens=30,
    instruction_tokens=7,
)


@pytest.fixture(scope="module")
def default_model() -> Path:
    return ensure_default_model()


def test_texts_have_exactly_as_many_tokens(model: Path, default_model: Path) -> None:
    for folder in (model, default_model):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for item in islice(items(MIXED, Vocabulary.of_model(folder), [1]), 200):
            assert isinstance(item, Embedding | Generation)
            text = item.text if isinstance(item, Embedding) else item.prompt
            assert len(tokenizer.encode(text).ids) == item.tokens


def test_a_prompt_of_a_question_has_as_many_tokens_as_its_parts(default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    for item in islice(items(ASKED, Vocabulary.of_model(default_model), [1]), 50):
        assert isinstance(item, Question)
        assert 15 <= len(tokenizer.encode(item.text).ids) == item.tokens <= 25
        for found in item.rounds:
            parts = [len(tokenizer.encode(part).ids) for part in (item.instruction, found.documents, item.text)]
            assert parts[0] == 7
            assert parts[1] in (20, 40, 60)
            assert len(tokenizer.encode(" ".join((item.instruction, found.documents, item.text))).ids) == sum(parts)


def test_the_seed_alone_decides(vocabulary: Vocabulary) -> None:
    for work in (MIXED, ASKED):
        first, again, other = (list(islice(items(work, vocabulary, [*seed]), 60)) for seed in ([1, 2], [1, 2], [1, 3]))
        assert first == again
        assert first != other
        assert len({str(item) for item in first}) == 60


@pytest.mark.parametrize("share", [0.0, 0.1, 0.33, 0.5, 0.9, 1.0])
def test_shares_are_exact_however_few_requests(vocabulary: Vocabulary, share: float) -> None:
    work = MIXED.model_copy(update={"embed_share": share})
    kinds = [isinstance(item, Embedding) for item in islice(items(work, vocabulary, [0]), 400)]
    for count in (20, 100, 400):
        assert abs(sum(kinds[:count]) - share * count) <= 0.5
    if share == 0.5:
        assert kinds[:20] not in ([True] * 10 + [False] * 10, [True, False] * 10)  # in no order of their own


def test_a_tokenizer_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 words of one token; 50 are needed"):
        Vocabulary(Tokenizer(models.WordLevel({"<unk>": 0, "word": 1}, unk_token="<unk>")))


def test_a_text_needs_room_beside_special_tokens(vocabulary: Vocabulary) -> None:
    work = MIXED.model_copy(update={"embed_share": 1.0, "embed_tokens": 1})
    with pytest.raises(ValueError, match="a text of 1 tokens: the tokenizer adds 1 by itself"):
        next(items(work, vocabulary, [0]))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        Vocabulary.of_model(tmp_path)
