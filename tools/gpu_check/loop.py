"""The engine's loop, stepped by hand: schedule, forward, commit, with no threads, and nobody to answer.

Keeps the plans, so that their cost can be computed when the clock has stopped.
"""

import time
from collections.abc import Sequence

from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import SchedulerSettings
from orthrus_backend.kv_cache import KVCache
from orthrus_backend.outputs import Output
from orthrus_backend.plan import Plan
from orthrus_backend.prefix_cache import PrefixCache
from orthrus_backend.request import Request
from orthrus_backend.runner import Runner
from orthrus_backend.sampling import Sampler
from orthrus_backend.scheduling.scheduler import Scheduler
from tools.gpu_check.models import Prepared


class Loop:
    """One model with memory for `tokens` tokens of keys and values."""

    def __init__(self, model: Prepared, settings: SchedulerSettings, tokens: int) -> None:
        backbone, computation = model.backbone, model.computation
        size = computation.attention.block_size
        pool = BlockPool(-(-tokens // size), size)
        cache = KVCache(model.shapes, pool.num_blocks, size, backbone.dtype, backbone.device)
        sampler = Sampler(int(backbone.config.vocab_size), computation.largest)
        self.scheduler = Scheduler(settings, pool, prefixes=PrefixCache(pool))
        self.plans: list[Plan] = []
        self.scheduling_seconds = 0.0  # of the steps in `plans`
        self._runner = Runner(backbone, computation.attention, cache, computation.adapters, sampler)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all of which can be computed."""
        for request in requests:
            self.scheduler.check_admissible(request)
            self.scheduler.add(request)

    def step(self) -> list[Output]:
        """One step; it may return before the device is done."""
        started = time.perf_counter()
        plan = self.scheduler.schedule(started)
        scheduled = time.perf_counter()
        result = self._runner.run(plan)
        computed = time.perf_counter()
        outputs = self.scheduler.commit(plan, result, computed)
        self.scheduling_seconds += scheduled - started + time.perf_counter() - computed
        self.plans.append(plan)
        return outputs

    def forget(self) -> None:
        """Begin to count anew."""
        self.plans.clear()
        self.scheduling_seconds = 0.0
