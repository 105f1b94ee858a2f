"""Chooses the next token of every generation from its row of logits.

The steps are those of vLLM (`vllm/v1/sample/sampler.py`): log-probabilities come from the untouched logits; then bans,
bias and penalties (`logit_edits`); then the likeliest token, or one drawn (`draws`) after temperature, min_p, top_k and
top_p. A draw spends one random number, made from nothing but the request's seed and the token's position (Philox:
Salmon et al., SC 2011). No row is ever compared with another, so a request draws the same tokens alone, in any batch,
and after a preemption.

A NaN logit counts as -inf. Where bans leave nothing they are dropped; where there was nothing, token 0 is chosen.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from orthrus_backend.draws import Controls, draw, in_blocks, likeliest, ranked
from orthrus_backend.logit_edits import edited
from orthrus_backend.request import GenerateRequest, TokenLogprobs

CANDIDATES = 128  # likeliest tokens of a row that top_k and top_p look at first
MORE_CANDIDATES = 4096  # and then, before the row is sorted whole
REPORTED = 64  # likeliest tokens that are ranked for a report: above what can be asked for, so that ties are settled
LEAST_LOGPROB = -9999.0  # stands for -inf, which JSON cannot carry


class Sampler:
    """Samples from a vocabulary of `vocab_size` tokens; ids from there on, a padded head's, are never chosen."""

    def __init__(self, vocab_size: int) -> None:
        assert vocab_size > 0
        self.vocab_size = vocab_size

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
        raw = in_blocks(logits[:, : self.vocab_size])  # [R, P]
        scores = edited(raw, requests, self.vocab_size)  # [R, P]
        tokens = likeliest(scores)  # [R]
        drawn = [row for row, r in enumerate(requests) if not r.params.greedy]
        reported = [row for row, r in enumerate(requests) if r.needs_logprobs]
        for candidates in (CANDIDATES, MORE_CANDIDATES, self.vocab_size):
            settled = self._draw(scores, requests, drawn, tokens, min(candidates, self.vocab_size))
            chosen, sure, reports = _to_host(tokens, settled, self._report(raw, reported, tokens))
            drawn = [row for row, done in zip(drawn, sure, strict=True) if not done]
            if not drawn:
                break
        report_of = dict(zip(reported, reports, strict=True))
        return [
            _entry(r, int(token), report_of.get(row))
            for row, (r, token) in enumerate(zip(requests, chosen, strict=True))
        ]

    def _draw(
        self, scores: Tensor, requests: Sequence[GenerateRequest], rows: list[int], tokens: Tensor, candidates: int
    ) -> Tensor:
        """Draw tokens of the given rows, into `tokens` [R]; returns of which one can be sure, [len(rows)] bool."""
        if not rows:
            return torch.ones(0, dtype=torch.bool, device=scores.device)
        controls = self._controls([requests[row] for row in rows], scores.device)
        mine = scores[rows] if len(rows) < len(scores) else scores
        drawn, settled = draw(mine, controls, self.vocab_size, candidates)
        alive = mine.amax(1) > float("-inf")
        tokens[rows] = torch.where(alive, drawn, tokens[rows])
        return settled

    def _controls(self, requests: Sequence[GenerateRequest], device: torch.device) -> Controls:
        columns = [
            (r.params.temperature, r.params.min_p, r.params.top_p, self._top_k(r), _uniform(r.seed, len(r.tokens)))
            for r in requests
        ]
        table = torch.tensor(columns, dtype=torch.float64).to(device)  # [n, 5]
        temperature, min_p, top_p, top_k, uniform = table.split(1, dim=1)
        ranked_rows = [row for row, r in enumerate(requests) if r.params.top_p < 1 or self._top_k(r) < self.vocab_size]
        return Controls(temperature.float(), min_p.float(), top_p, top_k.long(), uniform, ranked_rows)

    def _top_k(self, request: GenerateRequest) -> int:
        """Tokens that top_k leaves; 0 and -1 leave all."""
        return min(request.params.top_k, self.vocab_size) if request.params.top_k > 0 else self.vocab_size

    def _report(self, raw: Tensor, rows: list[int], tokens: Tensor) -> Tensor:
        """Log-probabilities of the chosen and of the likeliest tokens: [len(rows), 1 + 2K] float64.

        A row is: of the chosen token, of the K likeliest, and the K ids.
        """
        count = min(REPORTED, self.vocab_size)
        if not rows:
            return torch.empty(0, 1 + 2 * count, dtype=torch.float64, device=raw.device)
        logits = raw[rows]
        values, ids = ranked(logits, self.vocab_size, count)  # [m, K]
        logits = torch.cat([logits.gather(1, tokens[rows, None]), values], dim=1) - logits.logsumexp(1, keepdim=True)
        logprobs = torch.nan_to_num_(logits, nan=LEAST_LOGPROB, neginf=LEAST_LOGPROB).clamp_(min=LEAST_LOGPROB)
        return torch.cat([logprobs.double(), ids.double()], dim=1)


def _uniform(seed: int, position: int) -> float:
    """A random number in [0, 1) that belongs to one position of one request."""
    bits = np.random.Philox(key=seed % 2**64, counter=position).random_raw()
    return float(bits >> 11) * 2.0**-53


def _to_host(
    tokens: Tensor, settled: Tensor, reports: Tensor
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """One transfer for all three: everything as float64, which holds ids exactly."""
    flat = torch.cat([tokens.double(), settled.double(), reports.flatten()]).cpu().numpy()
    chosen, sure, rest = np.split(flat, [len(tokens), len(tokens) + len(settled)])
    return chosen, sure, rest.reshape(reports.shape)


def _entry(request: GenerateRequest, token: int, report: npt.NDArray[np.float64] | None) -> TokenLogprobs:
    if report is None:
        return TokenLogprobs(token, 0.0, ())
    values, ids = np.split(report[1:], 2)
    wanted = min(request.params.logprobs or 0, len(ids))
    top = tuple((int(i), float(value)) for i, value in zip(ids[:wanted], values[:wanted], strict=True))
    return TokenLogprobs(token, float(report[0]), top)
