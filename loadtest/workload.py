"""Texts with exact numbers of tokens, and the requests made of them: the same ones for every target.

Words are drawn from those of the model's vocabulary that are one token each wherever they stand in a text, so that a
text of n words is n tokens, plus what the tokenizer adds around every text. Requests follow from the scenario and a
seed alone. Knows no target and no clock.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
from tokenizers import Tokenizer

from loadtest.scenario import Length, Mix, Retrieval

MOST_WORDS = 4000
LEAST_WORDS = 50
BLOCK = 20  # requests within which the shares of the kinds are exact
_WORD = re.compile(r"[a-z][a-z0-9]{1,11}")


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text to embed."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A prompt to continue by exactly `output_tokens`."""

    prompt: str
    tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of retrieval finds, and how much it writes."""

    documents: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question for a retrieval pipeline, with what each of its rounds will find."""

    instruction: str  # empty, or the start of every prompt
    text: str
    tokens: int
    rounds: tuple[Round, ...]


Item = Embedding | Generation | Question


class Vocabulary:
    """Words that are one token each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises `ValueError` if there are too few."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.special = int(tokenizer.num_special_tokens_to_add(is_pair=False))
        names = (tokenizer.decode([token]).strip() for token in range(tokenizer.get_vocab_size()))
        candidates = list(dict.fromkeys(islice(filter(_WORD.fullmatch, names), 2 * MOST_WORDS)))
        pairs = tokenizer.encode_batch([f"{word} {word}" for word in candidates])
        singles = tokenizer.encode_batch(candidates)
        fit = [
            word
            for word, single, pair in zip(candidates, singles, pairs, strict=True)
            if (len(single.ids), len(pair.ids)) == (self.special + 1, self.special + 2)
        ]
        self._words = fit[:MOST_WORDS]
        if len(self._words) < LEAST_WORDS:
            raise ValueError(f"the tokenizer has {len(self._words)} words of one token; {LEAST_WORDS} are needed")

    @classmethod
    def of_model(cls, folder: Path) -> Self:
        """That of the tokenizer in a Hugging Face folder. Raises `ValueError` if there is none."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{folder} has no tokenizer.json, which texts of exact lengths need")
        return cls(Tokenizer.from_file(str(file)))

    def words(self, count: int, draw: np.random.Generator) -> str:
        """`count` words, separated by spaces."""
        return " ".join(map(self._words.__getitem__, draw.integers(len(self._words), size=count)))

    def text(self, tokens: int, draw: np.random.Generator) -> str:
        """A text of `tokens` tokens, special ones included. Raises `ValueError` if that leaves no word."""
        if tokens <= self.special:
            raise ValueError(f"a text of {tokens} tokens: the tokenizer adds {self.special} by itself")
        return self.words(tokens - self.special, draw)


def items(work: Mix | Retrieval, vocabulary: Vocabulary, seed: list[int]) -> Iterator[Item]:
    """Requests without end, each different. `seed` is a list of any numbers."""
    draw = np.random.default_rng(seed)
    return _mixed(work, vocabulary, draw) if isinstance(work, Mix) else _questions(work, vocabulary, draw)


def _mixed(work: Mix, vocabulary: Vocabulary, draw: np.random.Generator) -> Iterator[Item]:
    for is_embedding in _kinds(work.embed_share, draw):
        if is_embedding:
            tokens = _drawn(work.embed_tokens, draw)
            yield Embedding(vocabulary.text(tokens, draw), tokens)
        else:
            tokens = _drawn(work.prompt_tokens, draw)
            yield Generation(vocabulary.text(tokens, draw), tokens, _drawn(work.output_tokens, draw))


def _kinds(embed_share: float, draw: np.random.Generator) -> Iterator[bool]:
    """Which requests are embeddings: in random order, and in each block as many as their share."""
    before = 0
    while True:
        embeds = round((before + BLOCK) * embed_share) - round(before * embed_share)
        yield from draw.permutation([True] * embeds + [False] * (BLOCK - embeds)).tolist()
        before += BLOCK


def _questions(work: Retrieval, vocabulary: Vocabulary, draw: np.random.Generator) -> Iterator[Item]:
    instruction = vocabulary.words(work.instruction_tokens, draw)
    while True:
        tokens = _drawn(work.question_tokens, draw)
        question = vocabulary.text(tokens, draw)
        rounds = tuple(_round(work, vocabulary, draw) for _ in range(work.rounds))
        yield Question(instruction, question, tokens, rounds)


def _round(work: Retrieval, vocabulary: Vocabulary, draw: np.random.Generator) -> Round:
    lengths = [_drawn(work.document_tokens, draw) for _ in range(_drawn(work.documents, draw))]
    return Round(vocabulary.words(sum(lengths), draw), _drawn(work.output_tokens, draw))


def _drawn(length: Length, draw: np.random.Generator) -> int:
    return length if isinstance(length, int) else int(draw.integers(length[0], length[1], endpoint=True))
