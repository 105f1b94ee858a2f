"""Fills each step within the token budget and keeps the books of every live request.

Responsible for admission, order, blocks, preemption, and for the only place where a request advances: `commit`. Does
not know tensors, threads or clients.
"""

from bisect import insort

from orthrus_backend.blocks import BlockPool
from orthrus_backend.config import SchedulerSettings
from orthrus_backend.outputs import Embedded, Ended, Output, Produced, StepResult
from orthrus_backend.plan import Plan
from orthrus_backend.prefix_cache import PrefixCache
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Outcome, Request, TokenLogprobs
from orthrus_backend.scheduling.draft import Draft
from orthrus_backend.scheduling.pace import Pace
from orthrus_backend.scheduling.policy import Backlog, make_policy
from orthrus_backend.scheduling.queue import Queue
from orthrus_backend.scheduling.turns import Turns

_LEAST = 16  # tokens a step that the queues get also where the running generations take all of `step_time`


class Scheduler:
    """Plans steps over two queues and the running generations.

    Invariants: a queue is in order of arrival and only its head may own blocks; `running` are generations whose known
    tokens are all computed but the last, in order of arrival.

    With `whole_embeds` texts are never cut, as an encoder wants it: each is computed in one step, or refused. Without
    `prefixes` every request is computed from its first token on.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        pool: BlockPool,
        whole_embeds: bool = False,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.settings = settings
        self.whole_embeds = whole_embeds
        self.pool = pool
        self.prefixes = prefixes
        self.policy = make_policy(settings)
        self.queues: dict[Kind, Queue] = {
            Kind.EMBED: Queue(),
            Kind.GENERATE: Queue(settings.count_expected_output),
        }
        self.running: list[GenerateRequest] = []
        self.live: dict[int, Request] = {}  # by order: everything accepted and not yet ended
        self.preemptions = 0
        self._arrivals = 0
        self._turns = Turns(settings, pool, whole_embeds)
        self._pace = Pace(settings.step_time) if settings.step_time else None
        self._started = 0.0

    def check_admissible(self, request: Request) -> None:
        """Refuse what could never be computed.

        Raises:
            ValueError: the request alone needs more blocks, or more of a step, than there is.
        """
        tokens = request.total
        if isinstance(request, GenerateRequest):
            tokens += request.max_tokens - 1  # keys of the last token are never read
        elif tokens <= self.longest_whole:
            return  # fits a turn beside every running generation: needs no block
        elif self.whole_embeds:
            raise ValueError(
                f"a text of {tokens} tokens does not fit one step, and this model cannot compute it in parts; "
                f"the limit is {self.longest_whole} (token_budget {self.settings.token_budget} - max_running)"
            )
        if self.pool.needed(tokens) > self.pool.num_blocks:
            capacity = self.pool.num_blocks * self.pool.block_size
            detail = f"prompt {request.total}"
            if isinstance(request, GenerateRequest):
                detail += f" + max_tokens {request.max_tokens}"
            raise ValueError(f"{detail} needs key/value memory for {tokens} tokens; the limit is {capacity}")

    def add(self, request: Request) -> None:
        """Accept a request that `check_admissible` let pass."""
        assert request.remaining > 0
        request.order = self._arrivals
        self._arrivals += 1
        self.live[request.order] = request
        self.queues[request.kind].append(request)

    @property
    def has_work(self) -> bool:
        """Whether any accepted request has not ended."""
        return bool(self.live)

    def schedule(self, now: float) -> Plan:
        """Plan the next step; there is work. `now` is seconds of `time.monotonic`."""
        self._started = now
        queued = frozenset(kind for kind, queue in self.queues.items() if queue)
        draft = self._draft(self.policy.begin(queued, bool(self.running)))
        if not draft.lengths:
            draft = self._draft(frozenset(Kind))
        while not draft.lengths:  # partly computed requests hold all blocks: the eldest gets its way
            self._preempt(self._youngest_owner())
            draft = self._draft(frozenset(Kind))
        self._turns.end({kind: queue.head for kind, queue in self.queues.items()}, draft)
        for request in draft.requests.values():
            if request.first_scheduled is None:
                request.first_scheduled = now
        plan = Plan.ordered(draft.slices())
        for s in plan.embeds:
            if self._turns.is_whole(s.request, s.start, s.length):
                self.pool.release(s.request)  # several turns that became one slice
        plan.check(self.settings.token_budget)
        return plan

    def commit(self, plan: Plan, result: StepResult, now: float) -> list[Output]:
        """Advance every request by what the step computed, and say what became of it."""
        if self._pace:
            self._pace.observe(plan.tokens, now - self._started)
        outputs: list[Output] = []
        for s, pooled, at_border in zip(plan.embeds, result.pooled, result.at_borders, strict=True):
            assert isinstance(s.request, EmbedRequest)
            s.request.computed = s.stop
            if self.prefixes and at_border is not None:
                self.prefixes.leave_recurring(s.request, at_border)
            if s.completes:
                self._end(s.request, Outcome.EMBEDDED)
                outputs.append(Embedded(s.request, pooled))
            else:
                s.request.pool = pooled
        tokens = iter(result.sampled)
        for s in plan.slices[len(plan.embeds) :]:
            assert isinstance(s.request, GenerateRequest)
            samples = s.completes
            s.request.computed = s.stop
            if self.prefixes:
                self.prefixes.leave(s.request, s.stop)
            if samples:
                token = next(tokens)
                try:
                    outputs.append(self._advance(s.request, token, now))
                except Exception as error:  # of its text: no reason to end all others
                    outputs.append(self._fail(s.request, f"its text failed: {error}"))
        return outputs

    def end(self, request: Request, outcome: Outcome, message: str = "") -> Ended | None:
        """End a live request between steps, wherever it stands; None if it has already ended."""
        if request.order not in self.live:
            return None
        queue = self.queues[request.kind]
        if isinstance(request, GenerateRequest) and request in self.running:
            self.running.remove(request)
        elif request in queue:
            queue.remove(request)
            self._note_if_empty(request.kind)
        text = ""
        if isinstance(request, GenerateRequest) and request.text:
            try:
                text = request.text.finish()
            except Exception as error:
                outcome, message = Outcome.FAILED, f"its text failed: {error}"
        self._end(request, outcome)
        return Ended(request, outcome, message, text)

    def abandon(self) -> None:
        """Forget everything, wherever it stands: a step failed half-way. Blocks are free again."""
        for request in self.live.values():
            self.pool.release(request)
        self.live.clear()
        self.running.clear()
        for queue in self.queues.values():
            queue.clear()

    def check_integrity(self) -> None:
        """Assert that every live request is in one place and every block accounted for; between steps only."""
        waiting = [request for queue in self.queues.values() for request in queue]
        assert sorted(r.order for r in [*waiting, *self.running]) == sorted(self.live)
        self.pool.check_integrity(list(self.live.values()))
        if self.prefixes:
            self.prefixes.check_integrity()
        for kind, queue in self.queues.items():
            orders = [request.order for request in queue]
            assert orders == sorted(orders), f"{kind} queue out of order"
            assert not any(request.blocks for request in list(queue)[1:]), f"{kind}: blocks behind the head"
            fresh = Queue(self.settings.count_expected_output and kind is Kind.GENERATE)
            for request in queue:
                fresh.append(request)
            assert queue.tokens == fresh.tokens, f"{kind} queue counts {queue.tokens} tokens instead of {fresh.tokens}"

    @property
    def longest_whole(self) -> int:
        """Tokens of a text that can be computed in one turn whatever else is running."""
        return self._turns.longest_whole

    def _budget(self) -> int:
        """Tokens that a step should hold."""
        most = self.settings.token_budget
        if self._pace is None:
            return most
        return int(min(most, max(self._pace.tokens(), len(self.running) + _LEAST)))

    def _draft(self, kinds: frozenset[Kind]) -> Draft:
        draft = Draft(self._budget(), self.settings.token_budget)
        self._turns.begin()
        settled = True
        if Kind.GENERATE in kinds:
            settled = self._decode(draft)
        while draft.left:
            open_queues = self._open_queues(kinds, draft, settled)
            if not open_queues:
                break
            self._take_turn(self.policy.choose(open_queues), draft)
        return draft

    def _open_queues(self, kinds: frozenset[Kind], draft: Draft, settled: bool) -> dict[Kind, Backlog]:
        """Where the next turn may go: heads that have room, unless the policy has them wait for one that has none."""
        heads = {kind: head for kind in Kind if kind in kinds and (head := self.queues[kind].head)}
        backlogs = {kind: Backlog(self.queues[kind].tokens, head.order) for kind, head in heads.items()}
        shut = [backlogs[kind] for kind, head in heads.items() if not self._grant(head, draft, settled)]
        return {
            kind: backlog
            for kind, backlog in backlogs.items()
            if backlog not in shut and all(self.policy.may_pass(backlog, other) for other in shut)
        }

    def _decode(self, draft: Draft) -> bool:
        """One token for every running generation, eldest first; False if somebody was preempted for it."""
        before = self.preemptions
        for request in list(self.running):
            while request in self.running and not self.pool.grow(request, request.total):
                self._preempt(self._youngest_owner())
            if request in self.running:
                draft.add(request, 1)
        return self.preemptions == before

    def _grant(self, head: Request, draft: Draft, settled: bool) -> int:
        """Tokens that a turn would give to the head of a queue now."""
        return self._turns.tokens(head, self._rival(head), draft, len(self.running), settled)

    def _rival(self, head: Request) -> Request | None:
        (other,) = set(Kind) - {head.kind}
        return self.queues[other].head

    def _take_turn(self, kind: Kind, draft: Draft) -> None:
        queue = self.queues[kind]
        head = queue.head
        assert head is not None
        if self.prefixes and self._may_share(head, draft):
            self.prefixes.reuse(head)
            queue.skip(head.computed)
        tokens = self._grant(head, draft, settled=True)
        start = head.computed + draft.planned(head)
        stop = start + tokens
        if not self._turns.is_whole(head, start, tokens):
            grown = self.pool.grow(head, stop)
            assert grown
        if self.prefixes and kind is Kind.GENERATE:
            self.prefixes.leave(head, stop)  # for others in this step, too: keys are written before any are read
        draft.add(head, tokens)
        last = stop == head.total
        queue.take(tokens, last)
        if last and kind is Kind.GENERATE:
            draft.entering += 1
        self._note_if_empty(kind)

    def _may_share(self, head: Request, draft: Draft) -> bool:
        """Whether a request starts in this turn, and may take blocks."""
        starts = head.computed + draft.planned(head) == 0 and not head.blocks
        return starts and not (self._turns.is_uncut(head) or self._turns.gives_way(head, self._rival(head)))

    def _advance(self, request: GenerateRequest, token: TokenLogprobs, now: float) -> Produced:
        """Append a sampled token, and end the generation if it was the last one."""
        if not request.produced:
            request.first_token_at = now
        request.last_token_at = now
        request.tokens.append(token.token)
        request.cumulative_logprob += token.logprob
        text, outcome = "", None
        if token.token in request.stop_ids:
            outcome = Outcome.STOP
        else:
            if request.text is not None:
                text, stopped = request.text.append(token.token)
                outcome = Outcome.STOP if stopped else None
            if outcome is None and request.produced >= request.max_tokens:
                outcome = Outcome.LENGTH
        if outcome is not None:
            if request.text is not None:
                text += request.text.finish()
            if request in self.running:
                self.running.remove(request)
            self._end(request, outcome)
        elif request not in self.running:
            insort(self.running, request, key=lambda r: r.order)
        return Produced(request, token, text, outcome)

    def _fail(self, request: GenerateRequest, message: str) -> Ended:
        if request in self.running:
            self.running.remove(request)
        self._end(request, Outcome.FAILED)
        return Ended(request, Outcome.FAILED, message)

    def _end(self, request: Request, outcome: Outcome) -> None:
        request.outcome = outcome
        self.pool.release(request)
        del self.live[request.order]

    def _youngest_owner(self) -> Request:
        heads = [queue.head for queue in self.queues.values()]
        owners = [r for r in [*self.running, *heads] if r is not None and r.blocks]
        return max(owners, key=lambda r: r.order)

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it starts over from the head of its queue."""
        self.preemptions += 1
        queue = self.queues[request.kind]
        if isinstance(request, GenerateRequest) and request in self.running:
            self.running.remove(request)
        else:
            queue.remove(request)
        self.pool.release(request)
        request.restart()
        queue.put_back(request)

    def _note_if_empty(self, kind: Kind) -> None:
        if not self.queues[kind]:
            self.policy.emptied(kind)
