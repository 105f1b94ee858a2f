"""Streamed text against the tokenizer's own one-shot decode."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from orthrus_backend.default_model import ensure_default_model
from orthrus_backend.detokenize import Detokenizer

CORPUS = [
    "The quick brown fox doesn't jump over the lazy dog. Stop! STOP.\n\nEnd of text?",
    "naïve café über straße 你好世界 こんにちは 😀😃👩‍👩‍👧 🏳️‍🌈 don't won't",
    "  two  spaces\tand tabs \n lines, and (brackets) [too] {x: 1}",
]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<eos>", "<pad>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["你好吗"])
    return tokenizer


def llama_style() -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "▁the", "he", "▁stop", "st", "op", "a", "b", "é", "你", ".", "�", "▁STOP", "top."]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>", "<s>"], unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]", "[CLS]"]))
    return tokenizer


def end_of_word() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=["<eos>"], end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def no_decoder() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", "a", "b", "stop"])}))
    tokenizer.add_special_tokens([AddedToken("[UNK]", special=True)])
    return tokenizer


TOKENIZERS = {t.__name__: t() for t in (byte_level, llama_style, metaspace, word_piece, end_of_word, no_decoder)}


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer.from_file(str(ensure_default_model() / "tokenizer.json"))


def one_shot(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode([i for i in ids if 0 <= i < 2**32], skip_special_tokens=True)


def cut(text: str, stop: Sequence[str], include: bool) -> tuple[str, bool]:
    """The text up to the stop string that is complete first, of those the longest."""
    for end in range(1, len(text) + 1):
        for word in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(word):
                return text[: end if include else end - len(word)], True
    return text, False


def stream(detokenizer: Detokenizer, ids: Sequence[int]) -> tuple[list[str], int, bool]:
    """Deltas with the last flush, tokens taken, and whether a stop string ended the text."""
    deltas = []
    for taken, token in enumerate(ids, start=1):
        delta, stopped = detokenizer.append(token)
        deltas.append(delta)
        if stopped:
            assert detokenizer.finish() == ""
            assert detokenizer.append(ids[0]) == ("", True)
            return deltas, taken, True
    return [*deltas, detokenizer.finish()], len(ids), False


def check(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = (), include: bool = False) -> None:
    deltas, taken, stopped = stream(Detokenizer(tokenizer, stop, include), ids)
    text = one_shot(tokenizer, ids[:taken])
    expected, found = cut(text, stop, include)
    assert "".join(deltas) == expected
    assert found or not stopped
    if stopped:  # and not too late: without the last token there was no match, or none that was certain
        _, early = cut(one_shot(tokenizer, ids[: taken - 1]), stop, include)
        assert not early or "\N{REPLACEMENT CHARACTER}" in "".join(stop)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_deltas_add_up_to_the_one_shot_decode(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 3), min_size=1, max_size=60))
    check(tokenizer, ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_stop_strings_cut_where_they_cut_the_one_shot_decode(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), min_size=1, max_size=40))
    text = one_shot(tokenizer, ids)
    stop = data.draw(st.lists(st.text("abstop. \n�", min_size=1, max_size=4), max_size=2))
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, max(0, len(text) - 1)))
        stop += [text[start : start + data.draw(st.integers(1, 8))]] if text else []
    check(tokenizer, ids, stop, include=data.draw(st.booleans()))


@given(ids=st.lists(st.integers(0, 49151), min_size=1, max_size=40))
@settings(deadline=None, max_examples=100)
def test_random_ids_of_the_default_model(real: Tokenizer, ids: list[int]) -> None:
    check(real, ids)


@pytest.mark.parametrize(
    "text", [*CORPUS, "😀" * 30, "𓀀" * 12, "a𓀀" * 12, "你好世界。" * 20, "a\N{REPLACEMENT CHARACTER}b"]
)
def test_real_text_of_the_default_model(real: Tokenizer, text: str) -> None:
    ids = real.encode(text, add_special_tokens=False).ids
    deltas, *_ = stream(Detokenizer(real), ids)
    assert "".join(deltas) == text
    assert "\N{REPLACEMENT CHARACTER}" in text or "\N{REPLACEMENT CHARACTER}" not in "".join(deltas)
    for end in range(len(ids)):
        check(real, ids[:end])


def test_an_emoji_cut_short_is_one_replacement_character_in_the_last_delta(real: Tokenizer) -> None:
    ids = real.encode("😀", add_special_tokens=False).ids
    assert len(ids) > 1
    for end in range(1, len(ids)):
        *deltas, last = stream(Detokenizer(real), ids[:end])[0]
        assert "".join(deltas) == ""
        assert last == "\N{REPLACEMENT CHARACTER}"


def test_special_tokens_and_unknown_ids_are_no_text(real: Tokenizer) -> None:
    words = real.encode("Hello world", add_special_tokens=False).ids
    end = real.token_to_id("<|im_end|>")
    strange = [end, 10**6, 2**32, 2**70, -1] * 5
    deltas, *_ = stream(Detokenizer(real), [*strange, words[0], *strange, words[1], *strange])
    assert [delta for delta in deltas if delta] == ["Hello", " world"]
    check(real, [words[0], *strange, words[1]])


def test_a_stop_string_over_many_tokens_leaks_nothing(real: Tokenizer) -> None:
    ids = real.encode("One two three four five", add_special_tokens=False).ids
    deltas, taken, stopped = stream(Detokenizer(real, ["two three four"]), ids)
    assert "".join(deltas) == "One "
    assert stopped
    assert taken < len(ids)
    assert "".join(stream(Detokenizer(real, ["two three four"], include_stop=True), ids)[0]) == "One two three four"


def test_what_was_held_for_a_stop_string_comes_with_the_flush(real: Tokenizer) -> None:
    ids = real.encode("One two three", add_special_tokens=False).ids
    *deltas, last = stream(Detokenizer(real, ["two three four"]), ids)[0]
    assert "".join(deltas) == "One "
    assert last == "two three"


def test_text_goes_on_when_a_stop_string_does_not_come_true(real: Tokenizer) -> None:
    detokenizer = Detokenizer(real, ["two two three"])
    ids = real.encode("two two two three", add_special_tokens=False).ids
    assert "".join(stream(detokenizer, ids)[0]) == "two "


def test_the_stop_string_that_is_complete_first_wins() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("xabcdx").ids
    assert "".join(stream(Detokenizer(tokenizer, ["abcd", "bc"]), ids)[0]) == "xa"
    assert "".join(stream(Detokenizer(tokenizer, ["cd", "abcd"]), ids)[0]) == "x"


def test_stop_strings_wait_for_min_tokens() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    ids = [a, b, a, b, a, b]
    for min_tokens, expected in [(0, ""), (1, ""), (2, "ab"), (3, "ab"), (4, "abab"), (6, "ababab")]:
        assert "".join(stream(Detokenizer(tokenizer, ["ab"], min_tokens=min_tokens), ids)[0]) == expected


def test_a_newline_that_is_a_byte_token_stops_at_once() -> None:
    tokenizer = TOKENIZERS["llama_style"]
    ids = [tokenizer.token_to_id(piece) for piece in ("▁the", "<0x0A>", "a", "b")]
    deltas, taken, stopped = stream(Detokenizer(tokenizer, ["\n"]), ids)
    assert ("".join(deltas), taken, stopped) == ("the", 2, True)


@pytest.mark.parametrize("name", ["byte_level", "llama_style", "metaspace"])
@pytest.mark.parametrize("stop", [(), ("\n\n\n", "zzz" * 50)])
def test_the_ten_thousandth_token_costs_what_the_first_costs(name: str, stop: tuple[str, ...]) -> None:
    tokenizer = TOKENIZERS[name]
    worst = {"byte_level": "ð", "llama_style": "<0xF0>", "metaspace": "▁"}[name]  # never complete, or hardly text

    def seconds(count: int) -> float:
        detokenizer = Detokenizer(tokenizer, stop)
        start = time.perf_counter()
        for _ in range(count):
            detokenizer.append(tokenizer.token_to_id(worst))
        return time.perf_counter() - start

    seconds(100)
    assert min(seconds(10_000) for _ in range(2)) < 40 * max(seconds(1_000) for _ in range(3))
