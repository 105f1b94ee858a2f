"""Text to token ids and back: prompts, chat templates, truncation, special tokens. Knows no tensors, no scheduler."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig

from orthrus_backend.model import pretrained_source
from orthrus_backend.validation import shown


class Tokenization:
    """The tokenizer of a served model and the ids that end its generations."""

    def __init__(self, location: str, config: PretrainedConfig) -> None:
        source = pretrained_source(location)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(**source, use_fast=True, trust_remote_code=False)
        if not self._tokenizer.is_fast:
            raise ValueError(f"model {location!r} has no fast tokenizer, which incremental text needs")
        self.backend: tokenizers.Tokenizer = self._tokenizer.backend_tokenizer
        self.eos_ids = _eos_ids(location, config, self._tokenizer.eos_token_id)
        self.vocab_size = min(len(self._tokenizer), int(config.vocab_size))  # ids that mean something and have a row
        self.prompts = _sentence_transformers_prompts(location)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text; with `special`, what the model expects around it (such as a first BOS)."""
        ids: list[int] = self._tokenizer(_checked(text), add_special_tokens=special, verbose=False)["input_ids"]
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation with the model's own template, ready for the assistant's answer.

        Raises:
            ValueError: the model has no template, or the template refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template; send text_input instead of messages")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        return self.encode(text, special=False)  # the template already holds the special tokens

    def word_ids(self, word: str) -> list[tuple[int, ...]]:
        """Id sequences that spell a word, at the start of a text and after a space."""
        forms = (word, " " + word.lstrip())
        return list(dict.fromkeys(tuple(self.encode(form, special=False)) for form in forms))

    def prompt(self, name: str) -> str:
        """A prefix that the model's own files define for embeddings.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise ValueError(f"unknown prompt_name {shown(name)}; this model defines: {known}")
        return self.prompts[name]


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


def _sentence_transformers_prompts(location: str) -> dict[str, str]:
    path = Path(location) / "config_sentence_transformers.json"
    if not path.is_file():
        return {}
    prompts: dict[str, str] = json.loads(path.read_text(encoding="utf-8")).get("prompts") or {}
    return prompts
