"""Chooses the next token of every generation from its row of logits.

The steps are those of vLLM (`vllm/v1/sample/sampler.py`): log-probabilities come from the untouched logits; then bans,
bias and penalties (`logit_edits`); then the likeliest token, or one drawn (`draws`) after temperature, min_p, top_k and
top_p. A draw spends one random number, made from nothing but the request's seed and the token's position (Philox:
Salmon et al., SC 2011). No row is ever compared with another, so a request draws the same tokens alone, in any batch,
and after a preemption.

A NaN logit counts as -inf. Where bans leave nothing they are dropped; where there was nothing, token 0 is chosen.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from orthrus_backend.draws import Controls, draw, draw_top, in_blocks, likeliest, ranked
from orthrus_backend.logit_edits import edited, leaves_alone
from orthrus_backend.request import GenerateRequest, TokenLogprobs

CANDIDATES = 256  # likeliest tokens of a row that top_k and top_p look at first
WIDER = 8  # times as many candidates for a row that was too flat, until it is sorted whole
REPORTED = 64  # likeliest tokens that are ranked for a report: above what can be asked for, so that ties are settled
LEAST_LOGPROB = -9999.0  # stands for -inf, which JSON cannot carry


Largest = Callable[[Tensor, int], Tensor]  # [R, V], columns that count: the first of each row's largest, [R]
Floats = npt.NDArray[np.float64]


class Sampler:
    """Samples from a vocabulary of `vocab_size` tokens; ids from there on, a padded head's, are never chosen."""

    def __init__(self, vocab_size: int, largest: Largest | None = None) -> None:
        """`largest`: a faster way to find the likeliest token of rows that nothing else is asked of."""
        assert vocab_size > 0
        self.vocab_size = vocab_size
        self._largest = largest

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: Sequence[GenerateRequest]) -> list[TokenLogprobs]:
        """Choose one token for each row, waiting for the device once (again only for rows too flat for `CANDIDATES`).

        Args:
            logits: [R, V], any float dtype, V >= vocab_size; left as they are.
            requests: the R requests of the rows; their `tokens` are prompt and output so far.

        Returns:
            One entry for each row. Without `needs_logprobs` its `logprob` is 0 and `top` is empty.
        """
        assert logits.shape[0] == len(requests)
        assert logits.shape[1] >= self.vocab_size
        if not requests:
            return []
        if self._largest and all(map(_plainly_greedy, requests)):
            return [TokenLogprobs(token, 0.0, ()) for token in self._largest(logits, self.vocab_size).tolist()]
        raw = in_blocks(logits[:, : self.vocab_size])  # [R, P]
        scores = edited(raw, requests, self.vocab_size)  # [R, P]
        tokens = likeliest(scores)  # [R]
        free = [row for row, r in enumerate(requests) if not r.params.greedy and not self._ranks(r)]
        unsure = [row for row, r in enumerate(requests) if not r.params.greedy and self._ranks(r)]
        reported = [row for row, r in enumerate(requests) if r.needs_logprobs]
        if free:
            tokens[free] = draw(_take(scores, free), self._controls(requests, free, scores.device))
        candidates = min(CANDIDATES, self.vocab_size)
        while True:
            sure = torch.empty(0, dtype=torch.bool, device=scores.device)
            if unsure:
                controls = self._controls(requests, unsure, scores.device)
                tokens[unsure], sure = draw_top(_take(scores, unsure), controls, self.vocab_size, candidates)
            chosen, settled, reports = _to_host(tokens, sure, self._report(raw, reported, tokens))
            unsure = [row for row, done in zip(unsure, settled, strict=True) if not done]
            if not unsure:
                break
            candidates = min(candidates * WIDER, self.vocab_size)
        report_of = dict(zip(reported, reports, strict=True))
        pairs = enumerate(zip(requests, chosen, strict=True))
        return [_entry(r, int(token), report_of.get(row)) for row, (r, token) in pairs]

    def _top_k(self, request: GenerateRequest) -> int:
        """Tokens that top_k leaves; 0 and -1 leave all."""
        return min(request.params.top_k, self.vocab_size) if request.params.top_k > 0 else self.vocab_size

    def _ranks(self, request: GenerateRequest) -> bool:
        """Whether top_k or top_p is on, so that the likeliest tokens must be ranked."""
        return request.params.top_p < 1 or self._top_k(request) < self.vocab_size

    def _controls(self, requests: Sequence[GenerateRequest], rows: list[int], device: torch.device) -> Controls:
        mine = [requests[row] for row in rows]
        numbers = [
            (r.params.temperature, r.params.min_p, r.params.top_p, self._top_k(r), _uniform(r.seed, len(r.tokens)))
            for r in mine
        ]
        columns = torch.tensor(numbers, dtype=torch.float64).to(device).split(1, dim=1)  # each [n, 1]
        temperature, min_p, top_p, top_k, uniform = columns
        pruned = min_p.float() if any(r.params.min_p for r in mine) else None
        return Controls(temperature.float(), pruned, top_p, top_k.long(), uniform)

    def _report(self, raw: Tensor, rows: list[int], tokens: Tensor) -> Tensor:
        """Log-probabilities of the chosen and of the likeliest tokens: [len(rows), 1 + 2K] float64.

        A row is: of the chosen token, of the K likeliest, and the K ids.
        """
        count = min(REPORTED, self.vocab_size)
        if not rows:
            return torch.empty(0, 1 + 2 * count, dtype=torch.float64, device=raw.device)
        logits = _take(raw, rows)  # [m, P]
        values, ids = ranked(logits, self.vocab_size, count)  # [m, K]
        shown = torch.cat([logits.gather(1, tokens[rows, None]), values], dim=1)  # [m, 1 + K]
        logprobs = torch.nan_to_num_(shown - logits.logsumexp(1, keepdim=True), nan=LEAST_LOGPROB)
        return torch.cat([logprobs.clamp_(min=LEAST_LOGPROB).double(), ids.double()], dim=1)


def _plainly_greedy(request: GenerateRequest) -> bool:
    return request.params.greedy and not request.needs_logprobs and leaves_alone(request)


def _uniform(seed: int, position: int) -> float:
    """A random number in [0, 1) that belongs to one position of one request."""
    bits = np.random.Philox(key=seed % 2**64, counter=position).random_raw()
    return float(bits >> 11) * 2.0**-53


def _take(table: Tensor, rows: list[int]) -> Tensor:
    """The given rows, in order; the table itself where that is all of them."""
    return table[rows] if len(rows) < len(table) else table


def _to_host(tokens: Tensor, sure: Tensor, reports: Tensor) -> tuple[Floats, Floats, Floats]:
    """One transfer for all three: everything as float64, which holds ids exactly."""
    flat = torch.cat([tokens.double(), sure.double(), reports.flatten()]).cpu().numpy()
    chosen, settled, rest = np.split(flat, [len(tokens), len(tokens) + len(sure)])
    return chosen, settled, rest.reshape(reports.shape)


def _entry(request: GenerateRequest, token: int, report: Floats | None) -> TokenLogprobs:
    if report is None:
        return TokenLogprobs(token, 0.0, ())
    values, ids = np.split(report[1:], 2)
    wanted = request.params.logprobs or 0
    top = tuple((int(i), float(value)) for i, value in zip(ids[:wanted], values[:wanted], strict=True))
    return TokenLogprobs(token, float(report[0]), top)
