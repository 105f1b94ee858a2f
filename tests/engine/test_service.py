"""A whole service over a tiny model with a pool of 8 blocks: limits, ends, preemption, chat, as a caller meets them."""

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from orthrus_backend import assembly
from orthrus_backend.assembly import LoadedModel, Service, build_service, load_model
from orthrus_backend.config import EngineSettings
from orthrus_backend.outputs import Embedded, Produced
from orthrus_backend.params import EmbeddingParams, SamplingParams
from orthrus_backend.request import GenerateRequest, Outcome
from tests.engine.test_engine import send, totals
from tests.engine.tiny import VOCABULARY, configs

LIMIT = 128  # tokens: 8 blocks of 16
EOS = [2, 7]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'wizard' %}"
    "{{ raise_exception('no wizards here') }}{% endif %} {{ m.role }} {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %} assistant{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are words, with a BOS before every text and two ids that end one."""
    folder = tmp_path_factory.mktemp("tiny")
    names = {0: "<unk>", 1: "<s>", 2: "</s>", 7: "<end>", 8: "user", 9: "assistant"}
    words = Tokenizer(models.WordLevel({names.get(n, f"w{n}"): n for n in range(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = configs()["llama"]
    config.initializer_range = 0.2
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    parameters = {"model": str(folder), "dtype": "float32", "kv_memory": "64KiB"}
    service = build_service(EngineSettings.from_parameters(parameters))
    yield service
    service.engine.close()


def test_models_are_loaded_in_a_thread_that_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's helpers of any thread that lives on would let those of the engine's sleep."""
    loaders = []

    def load(*arguments: Any, **options: Any) -> LoadedModel:
        loaders.append(threading.current_thread())
        return load_model(*arguments, **options)

    monkeypatch.setattr(assembly, "load_model", load)
    service = build_service(EngineSettings.from_parameters({"model": str(folder), "kv_memory": "64KiB"}))
    service.close()
    assert [thread.is_alive() for thread in loaders] == [False]


def words(count: int, first: int = 20) -> str:
    """A text of so many words, each a token."""
    return " ".join(f"w{first + n % 150}" for n in range(count))


def run(service: Service, requests: Sequence[GenerateRequest]) -> list[tuple[list[int], str, Outcome | None]]:
    """Ids, text and end of each of several generations that are asked for together."""
    answers = []
    for inbox in send(service.engine, *requests):
        outcome = inbox.outcome()
        pieces = [output for output in inbox.outputs if isinstance(output, Produced)]
        answers.append(([p.token.token for p in pieces], "".join(p.text for p in pieces), outcome))
    return answers


def ask(service: Service, prompt: Any, **params: Any) -> tuple[list[int], str, Outcome | None]:
    params = {"temperature": 0} | params
    return run(service, [service.intake.generate(prompt, SamplingParams.from_mapping(params))])[0]


@pytest.mark.parametrize("eos", EOS)
def test_every_one_of_several_eos_ids_is_honoured(service: Service, eos: int) -> None:
    forced = {"logit_bias": {eos: 100}}
    ids, text, outcome = ask(service, "w20 w21", max_tokens=9, **forced)
    assert (ids, text, outcome) == ([eos], "", Outcome.STOP)
    ids, _, outcome = ask(service, "w20 w21", max_tokens=9, ignore_eos=True, **forced)
    assert (ids, outcome) == ([eos] * 9, Outcome.LENGTH)
    ids, _, outcome = ask(service, "w20 w21", max_tokens=9, min_tokens=4, **forced)
    assert not set(ids[:4]) & set(EOS)
    assert (ids[4:], outcome) == ([eos], Outcome.STOP)


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_gives_exactly_that_many(service: Service, max_tokens: int) -> None:
    ids, _, outcome = ask(service, words(5), max_tokens=max_tokens, ignore_eos=True)
    assert (len(ids), outcome) == (max_tokens, Outcome.LENGTH)


def test_a_stop_string_is_left_out_or_kept_and_what_was_held_for_it_flushed(service: Service) -> None:
    ids, text, _ = ask(service, words(5), max_tokens=6, ignore_eos=True)
    first, second, *_, last = text.split()
    assert len(ids) == 6
    ended = {"max_tokens": 6, "ignore_eos": True, "stop": ["never said", f"{first} {second}"]}
    assert ask(service, words(5), **ended) == (ids[:2], "", Outcome.STOP)
    kept = ask(service, words(5), **ended, include_stop_str_in_output=True)
    assert kept == (ids[:2], f"{first} {second}", Outcome.STOP)
    held = {"stop": [f"{last} and never this"]}
    assert ask(service, words(5), max_tokens=6, ignore_eos=True, **held) == (ids, text, Outcome.LENGTH)
    at_eos = ask(service, words(5), max_tokens=9, min_tokens=6, logit_bias={EOS[0]: 100}, **held)
    assert at_eos == ([*ids, EOS[0]], text, Outcome.STOP)


def test_an_empty_prompt_is_refused_with_a_bos_too_and_the_next_one_runs(service: Service) -> None:
    for empty in ("", []):
        with pytest.raises(ValueError, match="empty"):
            service.intake.generate(empty, SamplingParams())
        with pytest.raises(ValueError, match="empty"):
            service.intake.embed(empty, EmbeddingParams())
    assert len(ask(service, "w20", max_tokens=3, ignore_eos=True)[0]) == 3


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, LIMIT])
def test_a_prompt_up_to_the_limit_is_answered(service: Service, length: int) -> None:
    ids = list(range(20, 20 + length))
    twice = [ask(service, ids, max_tokens=1, ignore_eos=True) for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(twice[0][0]) == 1
    embeds = [service.intake.embed(ids, EmbeddingParams())]
    (inbox,) = send(service.engine, *embeds)
    assert inbox.outcome() is Outcome.EMBEDDED
    assert isinstance(inbox.outputs[-1], Embedded)


@pytest.mark.parametrize("length", [5, LIMIT - 20, LIMIT])
def test_without_max_tokens_there_are_16_at_most_and_null_means_all_the_room(service: Service, length: int) -> None:
    ids, room = list(range(20, 20 + length)), LIMIT + 1 - length
    assert len(ask(service, ids, ignore_eos=True)[0]) == min(16, room)
    assert len(ask(service, ids, max_tokens=None, ignore_eos=True)[0]) == room


@pytest.mark.parametrize(("length", "max_tokens"), [(LIMIT + 1, 1), (LIMIT, 2), (120, 100)])
def test_what_is_too_long_is_refused_with_all_numbers(service: Service, length: int, max_tokens: int) -> None:
    named = f"{length} tokens and max_tokens {max_tokens} exceed the model's limit of {LIMIT}"
    with pytest.raises(ValueError, match=named):
        ask(service, [20] * length, max_tokens=max_tokens)
    assert len(ask(service, [20] * 5, max_tokens=2, ignore_eos=True)[0]) == 2


def test_preempted_generations_end_as_alone(service: Service) -> None:
    """Greedy, drawn, with all three penalties, and with a stop string."""
    prompts = [words(19, first=20 + 9 * n) for n in range(5)]  # and a BOS: 20 tokens
    text = ask(service, prompts[4], max_tokens=40, ignore_eos=True)[1].split()
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "seed": 42},
        {"repetition_penalty": 1.3},
        {"temperature": 0.8, "seed": 42, "presence_penalty": 1.5, "frequency_penalty": 0.5, "top_p": 0.9},
        {"stop": [" ".join(text[30:32])]},
    ]
    params = [SamplingParams.from_mapping({"temperature": 0, "max_tokens": 40, "ignore_eos": True} | k) for k in kinds]
    asked = list(zip(prompts, params, strict=True))
    alone = [run(service, [service.intake.generate(p, s)])[0] for p, s in asked]
    before = service.engine.metrics.counters["orthrus_preemptions_total", ()]
    together = run(service, [service.intake.generate(p, s) for p, s in asked])
    assert service.engine.metrics.counters["orthrus_preemptions_total", ()] > before
    assert together == alone
    assert alone[4][2] is Outcome.STOP


def test_a_seed_gives_the_same_twice_in_one_batch_and_beside_an_unseeded_one(service: Service) -> None:
    seeded = SamplingParams.from_mapping({"seed": 42, "max_tokens": 9, "ignore_eos": True})
    free = SamplingParams.from_mapping({"max_tokens": 9, "ignore_eos": True})
    alone = run(service, [service.intake.generate("w20 w21", seeded)])[0]
    together = run(service, [service.intake.generate("w20 w21", p) for p in (seeded, free, seeded, free)])
    assert together[0] == together[2] == alone
    assert together[1] != together[3]


def test_continuations_are_what_their_seeds_give_alone(service: Service) -> None:
    params = SamplingParams.from_mapping({"seed": 2**64 - 2, "n": 4, "max_tokens": 9, "ignore_eos": True})
    continuations = service.intake.generate.continuations("w20 w21", params)
    assert [request.seed for request in continuations] == [2**64 - 2, 2**64 - 1, 0, 1]
    before = totals(service.engine)
    together = run(service, continuations)
    for answer, request in zip(together, continuations, strict=True):
        single = params.model_copy(update={"seed": request.seed, "n": 1})
        assert run(service, [service.intake.generate("w20 w21", single)])[0] == answer
    received, ended = totals(service.engine)
    assert received == before[0] + 8
    service.engine.close()
    assert totals(service.engine)[1] == before[1] + 8
    assert ended <= received


def test_out_of_vocabulary_ids_are_refused_and_neighbours_finish(service: Service) -> None:
    good = service.intake.generate(words(5), SamplingParams(max_tokens=20, ignore_eos=True))
    (inbox,) = send(service.engine, good)
    for params in ({"logit_bias": {VOCABULARY: 1}}, {"stop_token_ids": [VOCABULARY]}):
        with pytest.raises(ValueError, match=f"{next(iter(params))}: token id {VOCABULARY} is outside the vocabulary"):
            service.intake.generate(words(5), SamplingParams.from_mapping(params))
    assert inbox.outcome() is Outcome.LENGTH


def test_a_bad_word_without_tokens_is_refused_and_the_next_one_runs(service: Service) -> None:
    with pytest.raises(ValueError, match="bad_words: ' ' has no tokens"):
        ask(service, "w20 w21", bad_words=["w22", " "])
    assert len(ask(service, "w20 w21", bad_words=["w22"], max_tokens=3, ignore_eos=True)[0]) == 3


def test_a_long_conversation_is_refused_wherever_its_length_is(service: Service) -> None:
    for messages in ([{"role": "x" * 10_000, "content": "w30"}], [{"role": "user", "content": ["x" * 10_000]}]):
        with pytest.raises(ValueError, match=r"10\d\d\d characters; the model's limit is 128 tokens"):
            service.intake.generate(messages, SamplingParams())


def test_an_unknown_adapter_is_refused_by_name(service: Service) -> None:
    for intake, params in (
        (service.intake.generate, SamplingParams(adapter="nobody")),
        (service.intake.embed, EmbeddingParams(adapter="nobody")),
    ):
        with pytest.raises(ValueError, match="unknown adapter 'nobody'; loaded: none"):
            intake("w20", params)


def test_chat_ids_are_the_templates_with_one_bos(service: Service, folder: Path) -> None:
    messages = [{"role": "user", "content": "w30 w31"}, {"role": "assistant", "content": "w40"}]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    expected = expected["input_ids"] if hasattr(expected, "keys") else expected
    ids = service.intake.generate(messages, SamplingParams()).tokens
    assert ids == expected == [1, 8, 30, 31, 9, 40, 9]
    assert ids.count(1) == 1


def test_the_templates_own_refusal_is_passed_on(service: Service) -> None:
    with pytest.raises(ValueError, match="no wizards here"):
        service.intake.generate([{"role": "wizard", "content": "w30"}], SamplingParams())
