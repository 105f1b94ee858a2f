"""A tiny random model to put under load."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from loadtest.targets.target import Settings
from loadtest.workload import Vocabulary
from tests.engine.tiny import VOCABULARY, configs


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose tokens are words, unlike those of `small_model`, and one BOS before every text."""
    folder = tmp_path_factory.mktemp("tiny")
    special = {0: "<unk>", 1: "<s>", 2: "</s>"}
    words = Tokenizer(models.WordLevel({special.get(n, f"w{n}"): n for n in range(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(configs()["llama"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vocabulary(model: Path) -> Vocabulary:
    """The words of that model."""
    return Vocabulary.of_model(model)


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> Settings:
    """What targets of these tests have in common."""
    return Settings(model, "float32", max_model_len=128, max_running=8, kv_memory=16 << 20, logs=tmp_path)
