"""Embeddings as a model's own files want them, against Sentence Transformers on the same folder."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from orthrus_backend.params import EmbeddingParams, PoolingMode
from tests.engine.sentence_folders import (
    CONFIGS,
    WIDTH,
    build,
    change,
    embed,
    make_legacy,
    reference,
    reference_ids,
    serving,
)
from tests.small_model import SPECIAL, TEXTS

MODES = ["mean", "mean_sqrt_len_tokens", "weightedmean", "max", "cls", "lasttoken"]
CHUNKS = [1, 7, 16, 0]


def dense(inputs: int, outputs: int, activation: torch.nn.Module | None = None, bias: bool = True) -> Dense:
    torch.manual_seed(1)
    return Dense(inputs, outputs, bias=bias, activation_function=activation or torch.nn.Tanh())


def assert_equal(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("special", SPECIAL)
def test_ids_counts_and_vectors_equal_the_reference(tmp_path: Path, family: str, special: str) -> None:
    folder = build(tmp_path, MODES, family=family, special=special)
    model = reference(folder)
    with serving(folder, chunk=16) as service:
        for text in TEXTS:
            assert service.intake.embed(text, EmbeddingParams()).tokens == reference_ids(model, text)
        assert_equal(embed(service, TEXTS), model.encode(list(TEXTS)))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("mode", ["mean", "lasttoken", MODES[::-1]])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_every_mode_in_every_chunking(tmp_path: Path, chunk: int, mode: Any, include_prompt: bool) -> None:
    folder = build(tmp_path, mode, include_prompt=include_prompt, prompts={"query": "Some words first: "})
    model = reference(folder)
    with serving(folder, chunk) as service:
        assert_equal(embed(service, TEXTS), model.encode(list(TEXTS)))
        prompted = model.encode(list(TEXTS), prompt_name="query")
        assert_equal(embed(service, TEXTS, prompt_name="query"), prompted)
        assert not np.allclose(prompted, model.encode(list(TEXTS)), atol=1e-3)


@pytest.mark.parametrize(
    ("keys", "normalize"),
    [
        ({"cls_token": True}, True),
        ({"mean_tokens": True, "cls_token": False}, False),
        ({"lasttoken": True, "mean_tokens": True, "cls_token": True}, False),  # their order, not the file's
        ({"max_tokens": True, "mean_sqrt_len_tokens": True, "weightedmean_tokens": True}, True),
        ({"cls_token": False, "mean_tokens": False}, False),  # nothing chosen: mean
    ],
)
def test_the_older_files_mean_the_same(tmp_path: Path, keys: dict[str, bool], normalize: bool) -> None:
    folder = build(tmp_path, "mean", *([Normalize()] if normalize else []))
    make_legacy(folder, max_seq_length=12, do_lower_case=True, **keys)
    model = reference(folder)
    text = "The QUICK Brown fox jumps over the lazy dog"
    with serving(folder, 7) as service:
        request = service.intake.embed(text, EmbeddingParams(truncate="end"))
        assert request.tokens == reference_ids(model, text)
        assert len(request.tokens) == 12
        assert_equal(embed(service, [text, "THE fox"], truncate="end"), model.encode([text, "THE fox"]))


@pytest.mark.parametrize(
    "activation",
    [torch.nn.Identity(), torch.nn.Tanh(), torch.nn.ReLU(), torch.nn.GELU(), torch.nn.SiLU(), torch.nn.Sigmoid()],
)
@pytest.mark.parametrize("bias", [True, False])
def test_dense_and_its_activation(tmp_path: Path, activation: torch.nn.Module, bias: bool) -> None:
    folder = build(tmp_path, ["cls", "mean"], dense(2 * WIDTH, 20, activation, bias), Normalize())
    with serving(folder, 16) as service:
        assert_equal(embed(service, TEXTS), reference(folder).encode(list(TEXTS)))


def test_modules_run_in_the_order_of_the_file(tmp_path: Path) -> None:
    folder = build(tmp_path, "mean", dense(WIDTH, 20), Normalize(), dense(20, 12, torch.nn.Identity()))
    with serving(folder, 7) as service:
        vectors = embed(service, TEXTS)
        assert_equal(vectors, reference(folder).encode(list(TEXTS)))
        assert vectors.shape == (3, 12)
        assert not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)


@pytest.mark.parametrize("has_normalize", [True, False])
@pytest.mark.parametrize("asked", [None, True, False])
def test_normalize_is_the_files_choice_unless_asked(tmp_path: Path, has_normalize: bool, asked: bool | None) -> None:
    folder = build(tmp_path, "mean", *([Normalize()] if has_normalize else []))
    plain = build(tmp_path / "plain", "mean")
    expected = reference(plain).encode(list(TEXTS), normalize_embeddings=has_normalize if asked is None else asked)
    with serving(folder) as service:
        assert_equal(embed(service, TEXTS, **({} if asked is None else {"normalize": asked})), expected)


@pytest.mark.parametrize("mode", get_args(PoolingMode))
def test_a_request_may_ask_for_another_pooling(tmp_path: Path, mode: str) -> None:
    names = dict(
        zip(
            get_args(PoolingMode),
            ["mean", "mean_sqrt_len_tokens", "weightedmean", "max", "cls", "lasttoken"],
            strict=True,
        )
    )
    expected = reference(build(tmp_path / "other", names[mode])).encode(list(TEXTS))
    with serving(build(tmp_path, "lasttoken"), 7) as service:
        assert_equal(embed(service, TEXTS, pooling=mode), expected)


def test_a_request_may_ask_for_several_poolings(tmp_path: Path) -> None:
    expected = reference(build(tmp_path / "other", ["lasttoken", "mean"])).encode(list(TEXTS))
    with serving(build(tmp_path), 7) as service:
        assert_equal(embed(service, TEXTS, pooling=["last", "mean"]), expected)


def test_dimensions_cut_the_final_vector_and_then_normalise(tmp_path: Path) -> None:
    folder = build(tmp_path, ["mean", "cls"], dense(2 * WIDTH, 20), Normalize())
    expected = reference(folder).encode(list(TEXTS), truncate_dim=6, normalize_embeddings=True)
    with serving(folder) as service:
        assert_equal(embed(service, TEXTS, dimensions=6), expected)
        assert embed(service, TEXTS, dimensions=20).shape == (3, 20)
        for wrong, message in ((21, "21 is above the model's 20"), (0, "dimensions"), (-1, "dimensions")):
            with pytest.raises(ValueError, match=message):
                embed(service, TEXTS, dimensions=wrong)
        with pytest.raises(ValueError, match=r"pooling mean gives 32 numbers.*takes 64"):
            embed(service, TEXTS, pooling="mean")


def test_different_dimensions_share_a_batch(tmp_path: Path) -> None:
    folder = build(tmp_path, ["mean", "cls"])
    with serving(folder) as service:
        whole = embed(service, TEXTS, normalize=False)
        for size in (1, 33, 64):
            assert_equal(embed(service, TEXTS, normalize=False, dimensions=size), whole[:, :size])
        with pytest.raises(ValueError, match="65 is above the model's 64"):
            embed(service, TEXTS, dimensions=65)


def test_the_files_may_cut_vectors_themselves(tmp_path: Path) -> None:
    folder = build(tmp_path, "mean", truncate_dim=10)
    with serving(folder) as service:
        assert_equal(embed(service, TEXTS), reference(folder).encode(list(TEXTS)))
        assert embed(service, TEXTS, dimensions=20).shape == (3, 20)


def test_prompts_by_name_by_default_and_by_instruction(tmp_path: Path) -> None:
    prompts = {"query": "Find: ", "passage": ""}
    folder = build(tmp_path, "lasttoken", prompts=prompts, default_prompt_name="query")
    model = reference(folder)
    texts = list(TEXTS)
    with serving(folder) as service:
        assert_equal(embed(service, TEXTS), model.encode(texts))
        assert_equal(embed(service, TEXTS, prompt_name="query"), model.encode(texts, prompt_name="query"))
        assert_equal(embed(service, TEXTS, prompt_name="passage"), model.encode(texts, prompt_name="passage"))
        assert_equal(embed(service, TEXTS, instruction="Task: "), model.encode(texts, prompt="Task: "))
        assert_equal(embed(service, TEXTS, instruction=""), model.encode(texts, prompt=""))
        assert service.intake.embed("a", EmbeddingParams()).tokens == reference_ids(model, "Find: a")
        with pytest.raises(ValueError, match=r"unknown prompt_name 'other'.*passage, query"):
            embed(service, TEXTS, prompt_name="other")


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("mode", ["mean", "lasttoken"])
@pytest.mark.parametrize("side", ["end", "start"])
def test_truncation_keeps_the_special_tokens(tmp_path: Path, special: str, mode: str, side: str) -> None:
    folder = build(tmp_path, mode, special=special, max_seq_length=10)
    model = reference(folder)
    model.tokenizer.truncation_side = {"end": "right", "start": "left"}[side]
    with serving(folder, 7) as service:
        request = service.intake.embed(TEXTS[2], EmbeddingParams(truncate=side))
        assert request.tokens == reference_ids(model, TEXTS[2])
        assert len(request.tokens) == 10
        assert_equal(embed(service, TEXTS, truncate=side), model.encode(list(TEXTS)))
        with pytest.raises(ValueError, match="limit is 10 tokens"):
            service.intake.embed(TEXTS[2], EmbeddingParams())


@pytest.mark.parametrize("special", SPECIAL)
def test_a_prompt_stays_out_of_pooling_also_after_truncation(tmp_path: Path, special: str) -> None:
    folder = build(tmp_path, "mean", special=special, include_prompt=False, max_seq_length=30, prompts={"q": "Find: "})
    model = reference(folder)
    with serving(folder, 7) as service:
        expected = model.encode(list(TEXTS), prompt_name="q")
        assert_equal(embed(service, TEXTS, prompt_name="q", truncate="end"), expected)
        cut = service.intake.embed(TEXTS[2], EmbeddingParams(prompt_name="q", truncate="start"))
        assert len(cut.tokens) == 30
        assert cut.unpooled == int(special in ("bos", "both"))  # none of the prompt is left
        with pytest.raises(ValueError, match="leaves none of the text"):
            embed(service, ["a"], instruction="many words before it " * 10, truncate="end")


@pytest.mark.parametrize("special", ["bos", "both"])
def test_an_end_token_that_transformers_forgets_is_appended_once(tmp_path: Path, special: str) -> None:
    folder = build(tmp_path / special, "lasttoken", special=special, max_seq_length=10)
    change(folder / "tokenizer_config.json", add_eos_token=True, tokenizer_class="LlamaTokenizer")
    model = reference(build(tmp_path / "reference", "lasttoken", special="both", max_seq_length=10))
    with serving(folder) as service:
        for text in TEXTS:
            request = service.intake.embed(text, EmbeddingParams(truncate="end"))
            assert request.tokens == reference_ids(model, text)
        assert_equal(embed(service, TEXTS, truncate="end"), model.encode(list(TEXTS)))
        assert (service.tokenization.encode("a")[-1] == 2) == (special == "both")  # generation goes on as before


def test_lower_case_is_for_embeddings_only(tmp_path: Path) -> None:
    folder = build(tmp_path)
    make_legacy(folder, do_lower_case=True, mean_tokens=True)
    with serving(folder) as service:
        assert_equal(embed(service, ["A FOX"]), reference(folder).encode(["a fox"]))
        assert service.tokenization.encode("A FOX") != service.tokenization.encode("a fox")


def test_a_folder_without_modules_gives_normalised_means(tmp_path: Path) -> None:
    folder = build(tmp_path, "mean")
    expected = reference(folder).encode(list(TEXTS), normalize_embeddings=True)
    (folder / "modules.json").unlink()
    with serving(folder) as service:
        assert_equal(embed(service, TEXTS), expected)


def test_a_vector_is_the_same_beside_anything(tmp_path: Path) -> None:
    folder = build(tmp_path, ["mean", "lasttoken"], dense(2 * WIDTH, 20))
    with serving(folder, 16) as service:
        alone = np.concatenate([embed(service, [text]) for text in TEXTS])
        assert_equal(embed(service, [*TEXTS, TEXTS[2] * 1, *["filler text"] * 20])[:3], alone)


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = build(tmp_path, "mean", prompts={"q": "Find: "}, default_prompt_name="q", max_seq_length=10)
    model = reference(folder)
    ids = model.tokenizer("a fox")["input_ids"]
    with serving(folder) as service:
        assert_equal(embed(service, [ids]), model.encode(["a fox"], prompt=""))
        long = list(range(3, 20))
        assert service.intake.embed(long, EmbeddingParams(truncate="end")).tokens == long[:10]
        assert service.intake.embed(long, EmbeddingParams(truncate="start")).tokens == long[-10:]
        with pytest.raises(ValueError, match="go with a text"):
            embed(service, [ids], prompt_name="q")


def test_an_empty_text_is_refused_and_the_next_is_fine(tmp_path: Path) -> None:
    with serving(build(tmp_path, special="none")) as service:
        with pytest.raises(ValueError, match="empty"):
            embed(service, [""])
        assert embed(service, ["fine"]).shape == (1, WIDTH)


def test_a_head_that_does_not_fit_its_file_is_refused(tmp_path: Path) -> None:
    folder = build(tmp_path, "mean", dense(WIDTH, 20))
    change(folder / "2_Dense" / "config.json", out_features=21)
    with pytest.raises(ValueError, match=r"2_Dense.*\[20, 32\].*\[21, 32\]"), serving(folder):
        pass


def test_files_of_another_width_are_refused(tmp_path: Path) -> None:
    folder = build(tmp_path, "mean")
    change(folder / "1_Pooling" / "config.json", embedding_dimension=48)
    with pytest.raises(ValueError, match="hidden states of 48 numbers; the model's 32"), serving(folder):
        pass
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 32
