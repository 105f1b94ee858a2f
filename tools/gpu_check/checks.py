"""Whether the engine computes on this device what the models' own code computes on the CPU in float32.

Tiny random models of many families, in three number formats. The twin is Hugging Face's eager code with the very same
weights, widened to float32, one request at a time; where a request has an adapter, it is added to the weights.
Responsible for the loads, for the measures and for their bounds. Knows nothing of speed.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers.pytorch_utils import Conv1D

from orthrus_backend.adapters import Adapter
from orthrus_backend.model import Backbone, resolve_device
from orthrus_backend.outputs import Embedded, Produced
from orthrus_backend.params import PoolingMode
from orthrus_backend.request import AdapterHandle, EmbedRequest, GenerateRequest, Request, TokenLogprobs
from orthrus_backend.sampling import Sampler
from tests.engine.tiny import Bench, backbone, configs, encoder, generate, random_ids
from tools.gpu_check.models import make_adapter

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ENCODERS = ("bert", "xlm-roberta", "modernbert", "gemma3-bidirectional")
OF_A_TINY_CHECK = ("llama", "gemma2", "bert")  # families
POOLINGS: tuple[PoolingMode, ...] = ("mean", "weighted_mean", "mean_sqrt_len", "max", "cls", "last")
# Of a vector: the norm of the difference over the norm of the twin's.
MOST_VECTOR_ERROR = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.015}
# Of a token: by how much its log-probability differs, or half of what it lacks to the likeliest one.
MOST_LOGPROB_ERROR = {"float32": 2e-4, "bfloat16": 0.5, "float16": 0.06}


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of work on one model in one number format, and the largest errors in it."""

    family: str
    dtype: str
    work: str
    vector_error: float = 0.0
    logprob_error: float = 0.0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of an engine, and how it is set up."""

    texts: Sequence[int]  # their lengths in tokens
    prompts: Sequence[int]  # likewise
    settings: dict[str, int]
    max_tokens: int = 12
    ranks: Sequence[int] = ()  # of adapters; requests get none of them, the first, the second and so on in turn
    preempts: bool = False
    common: int = 0  # tokens before all these, the same for all


_SMALL = {"token_budget": 24, "chunk_size": 9, "max_running": 8}  # steps
LOADS = {
    "packed": Load((1, 7, 16, 17, 40, 61), (), {"token_budget": 256, "chunk_size": 0}),
    "chunked": Load((7, 17, 40, 61), (), _SMALL),
    "mixed": Load((1, 7, 16, 40), (1, 5, 16, 33), _SMALL),
    "adapters": Load((7, 16, 40), (5, 17, 33), {"token_budget": 64, "chunk_size": 16}, ranks=(4, 16)),
    "preempted": Load((40, 61), (20, 20, 20), {**_SMALL, "num_blocks": 8}, max_tokens=40, preempts=True),
    "prefixes": Load((5, 9, 20, 30), (1, 7, 20), _SMALL, common=40),
}
_ENCODER_LOADS = {"whole": Load((1, 7, 17, 40, 61), (), {"token_budget": 80})}
_WAYS: tuple[dict[str, Any], ...] = (  # to draw a token
    {},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40, "min_p": 0.01},
    {"temperature": 1.0, "top_k": 900, "top_p": 0.99},
    {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logit_bias": {7: 9.0}},
    {"temperature": 1.0, "logprobs": 5},
)


def check(device_name: str, tiny: bool) -> Iterator[Check]:
    """All checks, on all families that the engine's tests know; on two of them if `tiny`."""
    torch.set_float32_matmul_precision("highest")  # as the engine does when it loads a model in float32
    device = resolve_device(device_name)
    families = [name for name in (*sorted(configs()), *ENCODERS) if not tiny or name in OF_A_TINY_CHECK]
    for dtype in DTYPES:
        yield _guarded("", dtype, "sampler", partial(_check_sampler, DTYPES[dtype], device))
    for family, dtype in tqdm(list(product(families, DTYPES)), desc="checks", unit="model"):
        pair = Pair(family, DTYPES[dtype], device)
        for work, load in (_ENCODER_LOADS if family in ENCODERS else LOADS).items():
            yield _guarded(family, dtype, work, partial(pair.errors, load))


class Pair:
    """A tiny model for the engine on the device, and its twin on the CPU: the same weights in float32."""

    def __init__(self, family: str, dtype: torch.dtype, device: torch.device) -> None:
        make = encoder if family in ENCODERS else backbone
        model = make(family, dtype).model
        self._twin = make(family).model
        self._twin.load_state_dict(model.state_dict())
        self._twin.set_attn_implementation("eager")
        self._model = Backbone(model.to(device), device)
        self._embedder: Backbone | None = None
        if family in ENCODERS:  # an engine has a generator
            self._model, self._embedder = Backbone(backbone("llama", dtype).model.to(device), device), self._model

    def errors(self, load: Load) -> tuple[float, float]:
        """The largest errors of vectors and of log-probabilities."""
        adapters: list[Adapter | None] = [None]
        adapters += [make_adapter(f"rank {rank}", self._model, rank) for rank in load.ranks]
        requests: list[Request] = []
        common = random_ids(load.common, seed=99)
        for n, length in enumerate(load.texts):
            ids, adapter = common + random_ids(length, seed=n), adapters[n % len(adapters)]
            requests.append(EmbedRequest("", ids, adapter, 0.0, pooling=POOLINGS, normalize=False))
        for n, length in enumerate(load.prompts):
            ids, adapter = common + random_ids(length, seed=100 + n), adapters[n % len(adapters)]
            requests.append(generate(ids, load.max_tokens, adapter))
        vectors, tokens = self._run(load, requests)
        twins: dict[AdapterHandle | None, Any] = {adapter: self._adapted(adapter) for adapter in adapters}
        vector_error = [_vector_error(twins[request.adapter], request, vector) for request, vector in vectors.items()]
        logprob_error = [_logprob_error(twins[request.adapter], request, chosen) for request, chosen in tokens.items()]
        return max(vector_error, default=0.0), max(logprob_error, default=0.0)

    def _run(
        self, load: Load, requests: Sequence[Request]
    ) -> tuple[dict[EmbedRequest, Tensor], dict[GenerateRequest, list[TokenLogprobs]]]:
        bench = Bench(self._model, embedder=self._embedder, **load.settings)
        vectors: dict[EmbedRequest, Tensor] = {}
        tokens: dict[GenerateRequest, list[TokenLogprobs]] = {}
        for n, request in enumerate(requests):
            if isinstance(request, GenerateRequest):
                request.needs_logprobs = n % 2 == 0  # without, tokens may be chosen in another way
            bench.scheduler.check_admissible(request)
            bench.scheduler.add(request)
        while bench.scheduler.has_work:
            for output in bench.step():
                if isinstance(output, Embedded):
                    vectors[output.request] = torch.from_numpy(output.vector)
                elif isinstance(output, Produced):
                    tokens.setdefault(output.request, []).append(output.token)
        assert len(vectors) + len(tokens) == len(requests), "not every request was answered"
        assert ("mixed" in bench.compositions) == bool(load.texts and load.prompts), "not the steps that were meant"
        assert bool(bench.scheduler.preemptions) == load.preempts, "not the preemptions that were meant"
        prefixes = bench.scheduler.prefixes
        assert not load.common or (prefixes and all(prefixes.hits.values())), "nothing was found in the prefix cache"
        return vectors, tokens

    def _adapted(self, adapter: Adapter | None) -> Any:
        """The twin, or a copy of it with an adapter added to its weights."""
        if adapter is None:
            return self._twin
        model = deepcopy(self._twin)
        for name, factors in adapter.layers.items():
            module = model.get_submodule(name)
            added = factors.b.float().cpu() @ factors.a.float().cpu()  # [out, in]
            module.weight += added.T if isinstance(module, Conv1D) else added
        return model


def _guarded(family: str, dtype: str, work: str, errors: Callable[[], tuple[float, float]]) -> Check:
    """The check, and what is wrong with it."""
    try:
        vector_error, logprob_error = errors()
    except Exception as error:
        return Check(family, dtype, work, fault=f"{type(error).__name__}: {error}")
    faults = [
        f"{what} are off by {found:.2g}, more than {bound:g}"
        for what, found, bound in (
            ("vectors", vector_error, MOST_VECTOR_ERROR[dtype]),
            ("log-probabilities", logprob_error, MOST_LOGPROB_ERROR[dtype]),
        )
        if not found <= bound  # NaN is not
    ]
    return Check(family, dtype, work, vector_error, logprob_error, "; ".join(faults))


@torch.inference_mode()
def _vector_error(twin: Any, request: EmbedRequest, vector: Tensor) -> float:
    """The largest of all poolings."""
    hidden = twin.base_model(torch.tensor([request.tokens]), use_cache=False).last_hidden_state[0].double()  # [n, d]
    position = torch.arange(1, len(hidden) + 1).double()  # [n]
    expected = {
        "mean": hidden.mean(0),
        "weighted_mean": position @ hidden / position.sum(),
        "mean_sqrt_len": hidden.sum(0) / len(hidden) ** 0.5,
        "max": hidden.amax(0),
        "cls": hidden[0],
        "last": hidden[-1],
    }
    parts = zip(POOLINGS, vector.double().chunk(len(POOLINGS)), strict=True)
    return float(torch.stack([(part - expected[name]).norm() / expected[name].norm() for name, part in parts]).max())


@torch.inference_mode()
def _logprob_error(twin: Any, request: GenerateRequest, chosen: Sequence[TokenLogprobs]) -> float:
    """The largest of all tokens, given those before them."""
    logits = twin(torch.tensor([request.tokens[:-1]]), use_cache=False).logits[0, request.prompt_length - 1 :]
    logprobs = logits.double().log_softmax(-1)  # [tokens, vocabulary]
    own = logprobs.gather(1, torch.tensor([[token.token] for token in chosen]))[:, 0]  # [tokens]
    errors = (logprobs.amax(1) - own) / 2
    if request.needs_logprobs:
        errors = torch.maximum(errors, (own - torch.tensor([token.logprob for token in chosen])).abs())
    return float(errors.max())


def _check_sampler(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Tokens drawn on the device from some logits are those drawn on the CPU."""
    logits = torch.randn(len(_WAYS), 5000, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype)
    requests = [generate(random_ids(20, seed=n), seed=n, **way) for n, way in enumerate(_WAYS)]
    sampler = Sampler(logits.shape[1] - 3)
    expected, drawn = (
        [token.token for token in sampler.sample(logits.to(place), requests)] for place in ("cpu", device)
    )
    assert drawn == expected, f"drew {drawn}, and on the CPU {expected}"
    return 0.0, 0.0
