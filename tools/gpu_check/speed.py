"""How fast the engine is with one model, beside the least time that the same steps could take (`roofline`).

Every number is the median of several repetitions, after one that does not count. Asserts nothing: how fast is fast
enough, others say.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from tqdm import tqdm

from orthrus_backend.adapters import Adapter
from orthrus_backend.config import PolicyName
from orthrus_backend.model import Backbone, resolve_device, resolve_dtype
from tools.gpu_check.bench import FULL, ON_CPU, TINY, Bench, Sizes, Timing
from tools.gpu_check.device import Ceiling
from tools.gpu_check.models import build, config_of, make_adapter, prepare
from tools.gpu_check.roofline import Counts

RANKS = (16, 64)  # of the adapters on embeddings
POLICIES: tuple[PolicyName, ...] = ("ibs", "fcfs", "homogeneous")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model was made, and checked against its own code."""

    model: str
    dtype: str
    seconds: float
    fault: str


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement. `tokens`, `steps` and all that is behind `limit` are those of one repetition."""

    model: str
    dtype: str
    work: str  # embed, decode or mixed
    variant: str
    tokens: int = 0  # embedded, decoded, or all that were computed
    seconds: float = 0.0  # the median, the least and the most of all repetitions
    least: float = 0.0
    most: float = 0.0
    tokens_per_second: float = 0.0
    roofline_seconds: float | None = None  # None: the ceilings could not be measured
    limit: str = ""  # what bounds most of the steps
    steps: int = 0
    operations: float = 0.0
    bytes: float = 0.0
    scheduling: float = 0.0  # share of the time
    details: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Case:
    work: str
    variant: str
    time: Callable[[], Timing]


def measure(name: str, device_name: str, tiny: bool, ceilings: Mapping[str, Ceiling]) -> Iterator[Loaded | Speed]:
    """Everything about one model. What fails is told in its row, and the others are measured all the same."""
    device = resolve_device(device_name)
    dtype = resolve_dtype("auto", device)
    sizes, label = TINY if tiny else ON_CPU if device.type == "cpu" else FULL, str(dtype).removeprefix("torch.")
    started = time.perf_counter()
    model = prepare(Backbone(build(config_of(name, tiny), device, dtype), device))
    adapters = [make_adapter(f"rank {rank}", model.backbone, rank) for rank in RANKS]
    yield Loaded(name, label, time.perf_counter() - started, model.fault)
    counts = Counts.of(model)
    for case in tqdm(_cases(Bench(model, sizes), sizes, adapters), desc=name, unit="measurement"):
        try:
            timing = case.time()
        except Exception as error:
            yield Speed(name, label, case.work, case.variant, fault=f"{type(error).__name__}: {error}")
        else:
            yield _row(name, label, case, timing, counts, ceilings.get(label))


def _cases(bench: Bench, sizes: Sizes, adapters: list[Adapter]) -> list[_Case]:
    embeds = [
        _Case("embed", f"steps of {budget}, {label}", partial(bench.embeddings, budget, adapter))
        for budget in sizes.budgets
        for label, adapter in [("no adapter", None), *((adapter.name, adapter) for adapter in adapters)]
    ]
    decodes = [_Case("decode", f"{running} running", partial(bench.decodes, running)) for running in sizes.running]
    mixed = [_Case("mixed", policy, partial(bench.mixed, policy, adapters)) for policy in POLICIES]
    return [*embeds, *decodes, *mixed]


def _row(name: str, dtype: str, case: _Case, timing: Timing, counts: Counts, ceiling: Ceiling | None) -> Speed:
    costs = [counts.cost(plan) for plan in timing.plans]
    limits = [cost.limited_by(ceiling) for cost in costs] if ceiling else [""]
    middle = median(timing.seconds)
    return Speed(
        model=name,
        dtype=dtype,
        work=case.work,
        variant=case.variant,
        tokens=timing.tokens,
        seconds=middle,
        least=min(timing.seconds),
        most=max(timing.seconds),
        tokens_per_second=timing.tokens / middle,
        roofline_seconds=sum(cost.seconds(ceiling) for cost in costs) if ceiling else None,
        limit=max(set(limits), key=limits.count),
        steps=len(costs),
        operations=sum(cost.operations for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        scheduling=timing.scheduling,
        details=timing.details,
    )
