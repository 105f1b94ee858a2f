"""Models that load and answer quickly, in folders: a tiny random Llama, and two layers of the default model."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from orthrus_backend.default_model import ensure_default_model

VOCABULARY = 300
SPECIAL = {"none": "$A", "bos": "<s> $A", "eos": "$A </s>", "both": "<s> $A </s>"}
TEXTS = (
    "a",
    "The quick brown fox",
    "A much longer text, with 47 numbers and commas, that fills more than one chunk of tokens",
)


def tokenizer(special: str = "both") -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer; `special` names what its post-processor puts around a text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text.lower() for text in TEXTS] * 10, trainer)
    if special != "none":
        ids = [("<s>", 1), ("</s>", 2)]
        backend.post_processor = processors.TemplateProcessing(single=SPECIAL[special], special_tokens=ids)
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def save_small_model(folder: Path) -> Path:
    """Two layers with heads that the kernels know."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.2,
    )
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_shallow_model(folder: Path) -> Path:
    """Name, tokenizer, widths and weights of the default model; what it says makes no sense."""
    source = ensure_default_model()
    target = folder / source.name
    model = AutoModelForCausalLM.from_pretrained(source, num_hidden_layers=2, dtype=torch.float32)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target
