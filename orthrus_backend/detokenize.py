"""Turns token ids into text as they come, and ends it at stop strings.

The definition is the tokenizer's own `decode` of all generated ids: what is handed out piece by piece adds up to
exactly that, cut where a stop string ends the text. Nothing is ever taken back, so whatever later tokens could still
change is held: an unfinished UTF-8 character, a run of byte tokens, the beginning of a stop string. Knows nothing of
models.

`tokenizers.decoders.DecodeStream` is not used: it raises on byte runs that turn out to be invalid, and holds back, and
decodes again and again, everything after one broken character.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
CONTEXT = 4  # tokens of at least a byte each: as many as one UTF-8 character can be split over
WINDOW = 16  # tokens that are decoded at a time, before all but `CONTEXT` are forgotten
PEEK = 64  # byte tokens in one run that are looked through for a stop string before the run has ended


class Detokenizer:
    """The text of one generation.

    A stop string ends the text as soon as its last character is there. Of several, the one that is complete first
    wins, of those the longest; text that came with the first `min_tokens` tokens completes none.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), include_stop: bool = False, min_tokens: int = 0
    ) -> None:
        """`include_stop` keeps the stop string in the text."""
        self._pieces = _Pieces(tokenizer)
        self._stop = _StopStrings(stop, include_stop)
        self._min_tokens = min_tokens
        self._tokens = 0
        self._ended = False

    def append(self, token: int) -> tuple[str, bool]:
        """Add a token; returns the text that is now certain, and whether the text has ended at a stop string.

        Ids outside the vocabulary, and special tokens, are no text. After the end nothing comes any more.
        """
        if self._ended:
            return "", True
        self._tokens += 1
        text = self._take(self._pieces.push(token))
        if self._stop and self._armed and not self._ended and self._stop.would_end(self._pieces.short_run()):
            text += self._take(self._pieces.rest())  # the generation ends here: nothing can change this run any more
        return text, self._ended

    def finish(self) -> str:
        """The text still held back, when no further token comes; empty from then on."""
        if self._ended:
            return ""
        text = self._take(self._pieces.rest())
        if not self._ended:
            text += self._stop.rest()
            self._ended = True
        return text

    @property
    def _armed(self) -> bool:
        return self._tokens > self._min_tokens

    def _take(self, text: str) -> str:
        text, self._ended = self._stop.push(text, self._armed)
        return text


class _Pieces:
    """Decodes a growing sequence of ids, each time only a window at its end.

    What a decoder makes of a token depends on its neighbours (a first space is dropped, bytes form characters), but not
    on tokens far before it. The exception is byte fallback, where one bad byte spoils its whole run of byte tokens:
    these wait until the run has ended.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._sent = 0  # characters of the window's text that were handed out
        self._run: list[int] = []  # byte tokens after the window

    def push(self, token: int) -> str:
        """Add a token; returns the text that became certain."""
        piece = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
        if not piece or self._is_special(token):
            return ""
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            self._run.append(token)
            return ""
        self._window += [*self._run, token]
        self._run.clear()
        text = self._decode(self._window)
        certain = len(text) - text.endswith(UNFINISHED)
        delta = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if len(self._window) >= WINDOW:
            self._shrink(text)
        return delta

    def short_run(self) -> str:
        """The text of a run of byte tokens, if it ended now; empty where there is none, or a very long one."""
        return self._decode(self._window + self._run)[self._sent :] if 0 < len(self._run) <= PEEK else ""

    def rest(self) -> str:
        """All text that was not handed out, which ends the sequence."""
        text = self._decode(self._window + self._run)[self._sent :]
        self._window, self._run, self._sent = [], [], 0
        return text

    def _shrink(self, text: str) -> None:
        context = self._window[-CONTEXT:]
        left = self._decode(context)
        if left:
            self._sent += len(left) - len(text)
            self._window = context

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _is_special(self, token: int) -> bool:
        return not self._decode([token]) and bool(self._tokenizer.decode([token], skip_special_tokens=False))


class _StopStrings:
    """Finds the first stop string in a growing text, and holds back what may become one.

    One Knuth-Morris-Pratt automaton for each: constant work per character, however the text is cut into pieces.
    """

    def __init__(self, stop: Sequence[str], include: bool) -> None:
        self._stop = sorted(stop, key=len, reverse=True)
        self._include = include
        self._borders = [_borders(word) for word in self._stop]
        self._matched = [0] * len(stop)  # characters of each stop string that the text ends with
        self._held = ""

    def __bool__(self) -> bool:
        return bool(self._stop)

    def push(self, text: str, armed: bool) -> tuple[str, bool]:
        """Add text; returns what is certain now, and whether a stop string was completed. Unless `armed`, none is."""
        if not self:
            return text, False
        before = len(self._held)
        self._held += text
        if (end := self._find(text, self._matched, armed)) is not None:
            after, word = end
            return self._held[: before + after - (0 if self._include else len(word))], True
        certain = len(self._held) - max(self._matched)
        text, self._held = self._held[:certain], self._held[certain:]
        return text, False

    def would_end(self, text: str) -> bool:
        """Whether this text would complete a stop string."""
        return bool(text) and self._find(text, self._matched.copy(), armed=True) is not None

    def rest(self) -> str:
        """What was held back, when no further text comes."""
        return self._held

    def _find(self, text: str, matched: list[int], armed: bool) -> tuple[int, str] | None:
        """Advance `matched` over the text; where a stop string is completed, the index after it, and which one."""
        for index, character in enumerate(text):
            for i, (word, borders) in enumerate(zip(self._stop, self._borders, strict=True)):
                length = matched[i]
                while length and word[length] != character:
                    length = borders[length - 1]
                matched[i] = length + (word[length] == character)
                if matched[i] == len(word):
                    if armed:
                        return index + 1, word
                    matched[i] = borders[-1]
        return None


def _borders(word: str) -> list[int]:
    """For each prefix of `word`, the length of the longest shorter prefix that it ends with."""
    borders = [0] * len(word)
    for end in range(1, len(word)):
        length = borders[end - 1]
        while length and word[length] != word[end]:
            length = borders[length - 1]
        borders[end] = length + (word[length] == word[end])
    return borders
