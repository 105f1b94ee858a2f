"""How a model wants its embeddings made, as its own Sentence Transformers files say.

Responsible for how the files fit together: which modules follow each other, and what becomes of widths. What is not
understood is refused when the model is loaded, never guessed. Knows nothing of tensors, requests or tokenizers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from orthrus_backend.model_files import find_file
from orthrus_backend.params import PoolingMode
from orthrus_backend.sentence_transformers_files import (
    DenseFile,
    ModuleEntry,
    NormalizeFile,
    PoolingFile,
    PromptsFile,
    TokenizerFile,
    TransformerFile,
    read_json,
)

_TRANSFORMER_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Tokenizers that appended EOS for `add_eos_token` when the models that say so were trained. transformers 5 forgets it
# where it takes tokenizer.json as it is (e5-mistral); the models still need it.
_TOKENIZERS_WITH_EOS = ("LlamaTokenizer", "LlamaTokenizerFast")
_UNLIMITED = 2**31  # transformers writes 1e30 for a tokenizer without a limit


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer and its activation; `weights` is a safetensors file."""

    in_features: int
    out_features: int
    bias: bool
    activation: str
    weights: Path


@dataclass(frozen=True, slots=True)
class Normalize:
    """L2 normalisation between two other steps."""


Step = Dense | Normalize


@dataclass(frozen=True, slots=True)
class EmbeddingRecipe:
    """From hidden states to a vector: pool, concatenate, `steps`, cut, and L2-normalise if `normalize`.

    Without files of its own a model gets the mean of all rows, normalised.

    Attributes:
        pooling: modes whose vectors are concatenated in this order.
        width: numbers in a hidden state that the files were made for; None where they say nothing.
        include_prompt: whether the prompt's rows are pooled too.
        default_prompt: stands before texts that come without an instruction or the name of a prompt.
        max_seq_length: tokens of a text, prompt and special tokens included; None for what the model can take.
        truncate_dim: numbers of a vector that are kept where a request does not say; None for all.
        append_eos: whether an end-of-sequence token belongs to every text.
    """

    pooling: tuple[PoolingMode, ...] = ("mean",)
    width: int | None = None
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    max_seq_length: int | None = None
    truncate_dim: int | None = None
    do_lower_case: bool = False
    append_eos: bool = False

    @classmethod
    def read(cls, location: str) -> "EmbeddingRecipe":
        """Read a folder or hub id; a model without `modules.json` gets the default, with its prompts.

        Raises:
            ValueError: something in the files cannot be honoured; the message names file, key and value.
        """
        texts = _read_texts(location)
        path = find_file(location, "modules.json")
        if path is None:
            return cls(prompts=texts.prompts, default_prompt=texts.default_prompt)
        modules = read_json(path, TypeAdapter(list[ModuleEntry]))
        names = [module.type for module in modules]
        if names[:2] != ["Transformer", "Pooling"] or not set(names[2:]) <= {"Dense", "Normalize"}:
            raise ValueError(f"{path}: the modules {', '.join(names) or '(none)'} in this order are not supported")
        if modules[0].path:
            raise ValueError(f"{path}: the model lies in the folder {modules[0].path!r}; ask for that folder itself")
        pooling = PoolingFile.read(_needed(location, f"{modules[1].path}/config.json"))
        transformer = _read_transformer(location)
        tokenizer = _read_tokenizer(location)
        steps = [_read_step(location, module) for module in modules[2:]]
        normalize = bool(steps) and isinstance(steps[-1], Normalize)
        while steps and isinstance(steps[-1], Normalize):
            steps.pop()
        return cls(
            pooling=pooling.pooling_mode,
            width=pooling.embedding_dimension,
            include_prompt=pooling.include_prompt,
            steps=tuple(steps),
            normalize=normalize,
            prompts=texts.prompts,
            default_prompt=texts.default_prompt,
            max_seq_length=transformer.max_seq_length or _limit(tokenizer),
            truncate_dim=texts.truncate_dim,
            do_lower_case=transformer.do_lower_case,
            append_eos=bool(tokenizer.add_eos_token) and tokenizer.tokenizer_class in _TOKENIZERS_WITH_EOS,
        )

    def dimensions(self, hidden_size: int, pooling: Sequence[PoolingMode] | None = None) -> int:
        """Numbers in a vector, before any are cut off; `pooling` replaces the model's own modes.

        Raises:
            ValueError: what pooling gives does not fit the steps after it, or the model is not the one of the files.
        """
        if self.width not in (None, hidden_size):
            raise ValueError(
                f"the pooling file is for hidden states of {self.width} numbers; the model's {hidden_size}"
            )
        modes = self.pooling if pooling is None else pooling
        size = hidden_size * len(modes)
        for step in self.steps:
            if isinstance(step, Dense):
                if step.in_features != size:
                    raise ValueError(
                        f"pooling {', '.join(modes)} gives {size} numbers; "
                        f"the model's Dense layer takes {step.in_features}"
                    )
                size = step.out_features
        return size


def _read_texts(location: str) -> PromptsFile:
    path = find_file(location, "config_sentence_transformers.json")
    return PromptsFile.read(path) if path else PromptsFile()


def _read_transformer(location: str) -> TransformerFile:
    for name in _TRANSFORMER_FILES:
        if path := find_file(location, name):
            return TransformerFile.read(path)
    return TransformerFile()


def _read_tokenizer(location: str) -> TokenizerFile:
    path = find_file(location, "tokenizer_config.json")
    return TokenizerFile.read(path) if path else TokenizerFile()


def _limit(tokenizer: TokenizerFile) -> int | None:
    limit = tokenizer.model_max_length
    return int(limit) if limit is not None and limit < _UNLIMITED else None


def _read_step(location: str, module: ModuleEntry) -> Step:
    if module.type == "Normalize":
        if path := find_file(location, f"{module.path}/config.json"):
            NormalizeFile.read(path)
        return Normalize()
    file = DenseFile.read(_needed(location, f"{module.path}/config.json"))
    return Dense(
        in_features=file.in_features,
        out_features=file.out_features,
        bias=file.bias,
        activation=file.activation_function,
        weights=_needed(location, f"{module.path}/model.safetensors"),
    )


def _needed(location: str, name: str) -> Path:
    path = find_file(location, name)
    if path is None:
        raise ValueError(f"model {location!r} has no {name}, which its modules.json asks for")
    return path
