"""Text to token ids and back: chat templates, truncation, special tokens. Knows no tensors, no scheduler."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
from jinja2 import TemplateError
from tokenizers import normalizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig

from orthrus_backend.model import pretrained_source


class Tokenization:
    """The tokenizer of a served model and the ids that end its generations.

    Embedding models may ask for texts in lower case (`lowercase`) and for an end-of-sequence token after each text
    (`append_eos`), also where their tokenizer does neither.
    """

    def __init__(
        self, location: str, config: PretrainedConfig, *, lowercase: bool = False, append_eos: bool = False
    ) -> None:
        source = pretrained_source(location)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(**source, use_fast=True, trust_remote_code=False)
        if not self._tokenizer.is_fast:
            raise ValueError(f"model {location!r} has no fast tokenizer, which incremental text needs")
        self.backend: tokenizers.Tokenizer = self._tokenizer.backend_tokenizer
        self.eos_ids = _eos_ids(location, config, self._tokenizer.eos_token_id)
        self.vocab_size = min(len(self._tokenizer), int(config.vocab_size))  # ids that mean something and have a row
        self.backend.no_truncation()  # what tokenizer.json says of batches is not for us
        self.backend.no_padding()
        if lowercase:
            _lowercase(self.backend)
        if append_eos:
            self._append_eos()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text; with `special`, what the model expects around it (such as a first BOS)."""
        ids: list[int] = self._tokenizer(_checked(text), add_special_tokens=special, verbose=False)["input_ids"]
        return ids

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation in the model's own template, special tokens included, ready for the assistant's answer.

        Raises:
            ValueError: the model has no template, or the template refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template; send text_input instead of messages")
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
        except (TemplateError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error

    def word_ids(self, word: str) -> list[tuple[int, ...]]:
        """Id sequences that spell a word, at the start of a text and after a space; none of them is empty."""
        forms = (word, " " + word.lstrip())
        spelled = dict.fromkeys(tuple(self.encode(form, special=False)) for form in forms)
        return [ids for ids in spelled if ids]

    def encode_cut(self, text: str, limit: int, keep: Literal["start", "end"]) -> list[int]:
        """Token ids of as much of a text as fits, its start or its end, with all special tokens in their places.

        Raises:
            ValueError: not even one token fits beside the special ones.
        """
        room = limit - self.backend.num_special_tokens_to_add(is_pair=False)
        if room < 1:
            raise ValueError(f"a limit of {limit} tokens leaves no room for text beside the special tokens")
        encoding = self.backend.encode(_checked(text), add_special_tokens=False)
        encoding.truncate(room, direction="right" if keep == "start" else "left")
        ids: list[int] = self.backend.post_process(encoding, add_special_tokens=True).ids
        return ids

    def prompt_length(self, prompt: str) -> int:
        """Tokens that a prompt takes at the start of a text, with the special tokens before it.

        As Sentence Transformers counts: a special token at the prompt's end belongs to the text.
        """
        ids = self.encode(prompt)
        return len(ids) - (bool(ids) and ids[-1] in self._tokenizer.all_special_ids)

    def leading_special(self) -> int:
        """Special tokens before every text."""
        return len(self._special_around()[0])

    def _special_around(self) -> tuple[list[str], list[str]]:
        """The special tokens before and after every text."""
        encoding = self.backend.encode("a", add_special_tokens=True)
        tokens, mask = encoding.tokens, encoding.special_tokens_mask
        first = mask.index(0) if 0 in mask else len(mask)
        return tokens[:first], [token for token, special in zip(tokens[first:], mask[first:], strict=True) if special]

    def _append_eos(self) -> None:
        """Make the end-of-sequence token one of those after every text, so that truncation leaves room for it."""
        eos, eos_id = self._tokenizer.eos_token, self._tokenizer.eos_token_id
        if eos is None:
            raise ValueError("the model's files ask for an end-of-sequence token, and its tokenizer has none")
        before, after = self._special_around()
        if eos in after:
            return
        special = {token: self.backend.token_to_id(token) for token in (*before, *after)} | {eos: eos_id}
        self.backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *after, eos], special_tokens=list(special.items())
        )


def _lowercase(backend: tokenizers.Tokenizer) -> None:
    """Lower case before everything else, unless the tokenizer does so itself."""
    present = backend.normalizer
    parts: list[Any] = [present] if present else []
    if isinstance(present, normalizers.Sequence):
        parts = [present[i] for i in range(len(present))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")  # a lone surrogate, which JSON can carry, is not text
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is not valid Unicode at character {error.start}") from error
    return text


def _eos_ids(location: str, config: PretrainedConfig, tokenizer_eos: int | None) -> frozenset[int]:
    """All ids that end a generation: those of generation_config.json, else of the model, else of the tokenizer."""
    generation_eos = None
    if (Path(location) / "generation_config.json").is_file() or not Path(location).exists():
        try:
            generation_eos = GenerationConfig.from_pretrained(location).eos_token_id
        except OSError:
            generation_eos = None  # a hub model without the file
    for eos in (generation_eos, config.eos_token_id, tokenizer_eos):
        if eos is not None:
            return frozenset(eos if isinstance(eos, list) else [eos])
    return frozenset()
