"""What Sentence Transformers' files say is honoured, or refused by its name, when they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from orthrus_backend import model_files
from orthrus_backend.embedding_recipe import Dense, EmbeddingRecipe, Normalize

POOLING = "1_Pooling/config.json"
DENSE = "2_Dense/config.json"
PROMPTS = "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"
FILES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    POOLING: {"word_embedding_dimension": 8, "pooling_mode_lasttoken": True},
    DENSE: {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.activation.GELU"},
    "2_Dense/model.safetensors": {},
    PROMPTS: {"prompts": {"query": "q: ", "none": None}, "default_prompt_name": "query", "__version__": {}},
    TRANSFORMER: {"max_seq_length": 100, "do_lower_case": True},
    "tokenizer_config.json": {"model_max_length": 512},
}


def write(folder: Path, **files: Any) -> str:
    """A folder of `FILES`, some replaced: a path's slashes and dots are what `FILES` has."""
    for name, content in (FILES | files).items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder)


def with_modules(*types: str) -> dict[str, Any]:
    return {"modules.json": [{"path": f"{i}_" if i else "", "type": name} for i, name in enumerate(types)]}


def test_everything_is_read(tmp_path: Path) -> None:
    assert EmbeddingRecipe.read(write(tmp_path)) == EmbeddingRecipe(
        pooling=("last",),
        width=8,
        steps=(Dense(8, 4, True, "gelu", tmp_path / "2_Dense" / "model.safetensors"),),
        normalize=True,
        prompts={"query": "q: ", "none": ""},
        default_prompt="q: ",
        max_seq_length=100,
        do_lower_case=True,
    )


def test_an_inner_normalisation_is_a_step(tmp_path: Path) -> None:
    modules = [FILES["modules.json"][i] for i in (0, 1, 3, 2)]
    recipe = EmbeddingRecipe.read(write(tmp_path, **{"modules.json": modules}))
    assert recipe.steps[0] == Normalize()
    assert not recipe.normalize


@pytest.mark.parametrize("limit", [None, 10**30, 64])
def test_the_tokenizer_limits_where_the_model_file_does_not(tmp_path: Path, limit: int | None) -> None:
    files = {TRANSFORMER: {}, "tokenizer_config.json": {"model_max_length": limit}}
    assert EmbeddingRecipe.read(write(tmp_path, **files)).max_seq_length == (64 if limit == 64 else None)


def test_without_files_there_is_a_default(tmp_path: Path) -> None:
    assert EmbeddingRecipe.read(str(tmp_path)) == EmbeddingRecipe(pooling=("mean",), normalize=True)
    (tmp_path / "model.gguf").touch()
    assert EmbeddingRecipe.read(str(tmp_path / "model.gguf")) == EmbeddingRecipe()


def test_prompts_are_read_without_modules(tmp_path: Path) -> None:
    recipe = EmbeddingRecipe.read(write(tmp_path, **{"modules.json": None}))
    assert (recipe.default_prompt, recipe.pooling) == ("q: ", ("mean",))


TYPES = "sentence_transformers.models."
REFUSED: list[tuple[dict[str, Any], str]] = [
    (with_modules(f"{TYPES}Transformer", f"{TYPES}CNN"), r"modules.json: .*sentence_transformers.models.CNN"),
    (with_modules(f"{TYPES}Transformer", "custom_pooling.Pooling"), r"modules.json: .*custom_pooling.Pooling"),
    (with_modules(f"{TYPES}Transformer"), r"the modules Transformer in this order"),
    (with_modules(f"{TYPES}Transformer", f"{TYPES}Normalize", f"{TYPES}Pooling"), "Transformer, Normalize, Pooling"),
    (with_modules(), r"the modules \(none\)"),
    ({"modules.json": [{"path": "0_T", "type": f"{TYPES}Transformer"}, FILES["modules.json"][1]]}, "'0_T'"),
    ({"modules.json": [FILES["modules.json"][0], {"path": "../x", "type": f"{TYPES}Pooling"}]}, r"'../x' lies outside"),
    ({"modules.json": [FILES["modules.json"][0] | {"kwargs": ["task"]}]}, r"kwargs = \['task'\]"),
    ({"modules.json": "{"}, "modules.json is not valid JSON"),
    ({POOLING: None}, "no 1_Pooling/config.json"),
    ({POOLING: {"embedding_dimension": 8, "pooling_mode": "attention"}}, r"pooling_mode.*'attention'"),
    ({POOLING: {"embedding_dimension": 8, "pooling_mode": ["mean", "median"]}}, r"pooling_mode.*'median'"),
    ({POOLING: {"embedding_dimension": 8, "pooling_mode_new": True}}, "pooling_mode_new = True"),
    ({POOLING: {"pooling_mode": "mean"}}, "embedding_dimension"),
    ({DENSE: FILES[DENSE] | {"activation_function": "custom.Act"}}, r"activation_function: 'custom.Act'"),
    ({DENSE: FILES[DENSE] | {"activation_function": "torch.nn.modules.activation.PReLU"}}, "PReLU"),
    ({DENSE: FILES[DENSE] | {"use_residual": True}}, "use_residual = True"),
    ({DENSE: FILES[DENSE] | {"module_input_name": "token_embeddings"}}, r"module_input_name.*token_embeddings"),
    ({"2_Dense/model.safetensors": None, "2_Dense/pytorch_model.bin": ""}, "no 2_Dense/model.safetensors"),
    ({"3_Normalize/config.json": {"module_input_name": "token_embeddings"}}, r"3_Normalize.*token_embeddings"),
    ({PROMPTS: {"default_prompt_name": "absent"}}, "default_prompt_name 'absent'"),
    ({PROMPTS: {"model_type": "SparseEncoder"}}, r"model_type.*SparseEncoder"),
    ({PROMPTS: {"query_prefix": "[Q] "}}, r"query_prefix = '\[Q\] '"),
    ({TRANSFORMER: {"max_seq_length": 0}}, "max_seq_length"),
    ({TRANSFORMER: {"transformer_task": "text-generation"}}, r"transformer_task.*text-generation"),
    ({TRANSFORMER: {"query_length": 32}}, "query_length = 32"),
    ({TRANSFORMER: {"processing_kwargs": {"text": {"max_length": 5}}}}, "processing_kwargs"),
    ({TRANSFORMER: {"model_args": {"trust_remote_code": True}}}, "model_args"),
    ({TRANSFORMER: {"modality_config": {"message": {}}}}, "modality_config.*message"),
    ({TRANSFORMER: {"modality_config": {"text": {"method": "encode"}}}}, "modality_config.*encode"),
]


@pytest.mark.parametrize(("files", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EmbeddingRecipe.read(write(tmp_path, **files))


def test_what_is_off_asks_for_nothing(tmp_path: Path) -> None:
    files = {
        POOLING: FILES[POOLING] | {"pooling_mode_new": False},
        DENSE: FILES[DENSE] | {"use_residual": False},
        TRANSFORMER: FILES[TRANSFORMER] | {"query_length": None, "processing_kwargs": {}, "unpad_inputs": True},
    }
    assert EmbeddingRecipe.read(write(tmp_path, **files)).pooling == ("last",)


class TestHub:
    """A hub id: what is not known to be absent is not taken as absent."""

    def test_a_file_that_the_hub_does_not_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(*_: str) -> str:
            raise model_files.EntryNotFoundError("404")

        monkeypatch.setattr(model_files, "hf_hub_download", missing)
        assert EmbeddingRecipe.read("some/model") == EmbeddingRecipe()

    def test_a_cached_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        write(tmp_path)

        def cached(_: str, name: str) -> str:
            if not (tmp_path / name).is_file():
                raise model_files.EntryNotFoundError("404")
            return str(tmp_path / name)

        monkeypatch.setattr(model_files, "hf_hub_download", cached)
        assert EmbeddingRecipe.read("some/model").pooling == ("last",)

    @pytest.mark.parametrize("known", [True, False])
    def test_without_a_network(self, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
        def offline(*_: str) -> str:
            raise model_files.LocalEntryNotFoundError("offline")

        cached = model_files._CACHED_NO_EXIST if known else None
        monkeypatch.setattr(model_files, "hf_hub_download", offline)
        monkeypatch.setattr(model_files, "try_to_load_from_cache", lambda *_: cached)
        if known:
            assert EmbeddingRecipe.read("some/model") == EmbeddingRecipe()
        else:
            with pytest.raises(ValueError, match=r"cannot tell whether model 'some/model' has .*out of reach"):
                EmbeddingRecipe.read("some/model")
