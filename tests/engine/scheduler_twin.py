"""A scheduler written for obviousness, against which the real one is compared step by step.

It keeps plain dictionaries, counts blocks as numbers and adds everything up anew at every decision.
"""

from dataclasses import dataclass, field


@dataclass
class Job:
    order: int
    kind: str
    tokens: int  # known so far
    max_tokens: int = 0
    prompt: int = 0
    computed: int = 0
    blocks: int = 0
    running: bool = False

    @property
    def produced(self) -> int:
        return self.tokens - self.prompt


@dataclass
class Twin:
    budget: int
    chunk: int
    max_running: int
    num_blocks: int
    block_size: int
    policy: str = "ibs"
    patience: int = 4
    jobs: list[Job] = field(default_factory=list)  # that have not ended
    credit: dict[str, float] = field(default_factory=lambda: {"embed": 0.0, "generate": 0.0})
    waited: dict[str, int] = field(default_factory=lambda: {"embed": 0, "generate": 0})
    last: str = "generate"
    short: set[str] = field(default_factory=set)  # kinds whose head lacked blocks in this step
    kept_waiting: dict[str, int] = field(default_factory=lambda: {"embed": 0, "generate": 0})

    def queue(self, kind: str, planned: dict[int, int]) -> list[Job]:
        return [
            j for j in self.jobs if j.kind == kind and not j.running and j.computed + planned.get(j.order, 0) < j.tokens
        ]

    def free(self) -> int:
        return self.num_blocks - sum(j.blocks for j in self.jobs)

    def need(self, tokens: int) -> int:
        return (tokens + self.block_size - 1) // self.block_size

    def preempt_youngest(self) -> None:
        victim = max((j for j in self.jobs if j.blocks), key=lambda j: j.order)
        victim.blocks, victim.computed, victim.running = 0, 0, False

    def step(self) -> list[tuple[int, int, int]]:
        kinds = self.kinds()
        planned = self.fill(kinds)
        if not planned:
            planned = self.fill({"embed", "generate"})
        while not planned:
            self.preempt_youngest()
            planned = self.fill({"embed", "generate"})
        for kind in ("embed", "generate"):
            waiting = self.queue(kind, planned)
            waits = kind in self.short and waiting and waiting[0].order not in planned
            self.kept_waiting[kind] = self.kept_waiting[kind] + 1 if waits else 0
        plan = []
        for order, length in planned.items():
            job = next(j for j in self.jobs if j.order == order)
            plan.append((order, job.computed, length))
            if job.kind == "embed" and job.computed == 0 and length == job.tokens:
                job.blocks = 0
        return sorted(plan)

    def kinds(self) -> set[str]:
        queued = {k for k in ("embed", "generate") if self.queue(k, {})}
        for kind in queued:
            self.waited[kind] += 1
        if self.policy != "homogeneous":
            return {"embed", "generate"}
        working = queued | ({"generate"} if any(j.running for j in self.jobs) else set())
        other = "embed" if self.last == "generate" else "generate"
        if other in working:
            self.last = other
        return {self.last}

    def fill(self, kinds: set[str]) -> dict[int, int]:
        planned: dict[int, int] = {}
        preempted = False
        self.short = set()
        if "generate" in kinds:
            for job in [j for j in self.jobs if j.running]:
                while job.running and self.need(job.tokens) - job.blocks > self.free():
                    self.preempt_youngest()
                    preempted = True
                if job.running:
                    job.blocks = max(job.blocks, self.need(job.tokens))
                    planned[job.order] = 1
        while sum(planned.values()) < self.budget:
            turns = {}
            for kind in ("embed", "generate"):
                waiting = self.queue(kind, planned)
                if kind in kinds and waiting:
                    tokens = self.turn(waiting[0], planned, preempted)
                    if tokens:
                        turns[kind] = tokens
            if not turns or (self.policy == "fcfs" and self.eldest(planned) not in turns):
                break
            kind = self.choose(turns, planned)
            head = self.queue(kind, planned)[0]
            if not (kind == "embed" and turns[kind] == head.tokens):
                head.blocks = max(head.blocks, self.need(head.computed + planned.get(head.order, 0) + turns[kind]))
            planned[head.order] = planned.get(head.order, 0) + turns[kind]
            if not self.queue(kind, planned):
                self.credit[kind], self.waited[kind] = 0.0, 0
        return planned

    def eldest(self, planned: dict[int, int]) -> str:
        heads = [queue[0] for kind in ("embed", "generate") if (queue := self.queue(kind, planned))]
        return min(heads, key=lambda j: j.order).kind

    def turn(self, head: Job, planned: dict[int, int], preempted: bool) -> int:
        start = head.computed + planned.get(head.order, 0)
        tokens = min(self.chunk or self.budget, head.tokens - start, self.budget - sum(planned.values()))
        if head.kind == "generate":
            entering = [
                j
                for j in self.jobs
                if j.kind == "generate"
                and not j.running
                and j.order in planned
                and j.computed + planned[j.order] == j.tokens
            ]
            if sum(j.running for j in self.jobs) + len(entering) >= self.max_running:
                return 0
            if start == 0 and preempted:
                return 0
        elif start == 0 and tokens == head.tokens:
            return tokens
        other = "generate" if head.kind == "embed" else "embed"
        rival = self.queue(other, planned)
        if start == 0 and rival and rival[0].order < head.order and self.kept_waiting[other] >= self.patience:
            return 0
        wanted = head.tokens if start == 0 else start + tokens
        if self.need(wanted) - head.blocks <= self.free():
            return tokens
        self.short.add(head.kind)
        return 0

    def choose(self, turns: dict[str, int], planned: dict[int, int]) -> str:
        if self.policy == "fcfs":
            return min(turns, key=lambda k: self.queue(k, planned)[0].order)
        if self.policy == "homogeneous":
            return next(iter(turns))
        if len(turns) == 2:
            work = {
                k: sum(j.tokens - j.computed - planned.get(j.order, 0) for j in self.queue(k, planned)) for k in turns
            }
            for k in turns:
                self.credit[k] += work[k] / sum(work.values())
            kind = max(turns, key=lambda k: (self.waited[k] > self.patience, self.credit[k]))
            self.credit[kind] -= 1.0
        else:
            kind = next(iter(turns))
        self.waited[kind] = 0
        return kind

    def commit(self, plan: list[tuple[int, int, int]], ends: set[int]) -> None:
        """Advance; generations in `ends` are told that their sampled token ends them."""
        for order, start, length in plan:
            job = next(j for j in self.jobs if j.order == order)
            job.computed = start + length
            if job.computed < job.tokens:
                continue
            if job.kind == "generate":
                job.tokens += 1
                job.running = True
            if job.kind == "embed" or order in ends or job.produced >= job.max_tokens:
                self.jobs.remove(job)

    def cancel(self, order: int) -> None:
        for job in [j for j in self.jobs if j.order == order]:
            self.jobs.remove(job)
            if not self.queue(job.kind, {}):
                self.credit[job.kind], self.waited[job.kind] = 0.0, 0
