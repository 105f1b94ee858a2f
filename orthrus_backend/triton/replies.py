"""Turns outputs of the engine into Triton responses: exactly one FINAL for each request, on its last response.

All methods run on the engine's delivery thread.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from orthrus_backend.outputs import Embedded, Ended, Output, Produced
from orthrus_backend.request import EmbedRequest, GenerateRequest, Outcome, TokenLogprobs
from orthrus_backend.tokenization import Tokenization
from orthrus_backend.triton.inputs import EmbedCall, GenerateCall
from orthrus_backend.triton.responder import ErrorCode, Responder

_ERRORS: dict[Outcome, tuple[ErrorCode, str]] = {
    Outcome.CANCELLED: ("CANCELLED", "the request was ended before its answer was complete"),
    Outcome.TIMEOUT: ("DEADLINE_EXCEEDED", "the request's time is over"),
    Outcome.FAILED: ("UNAVAILABLE", "the engine failed"),
}


class _Reply:
    """What both kinds share."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._responder.is_cancelled()

    def abort(self, message: str) -> None:
        """Answer with an error, if an answer is still due."""
        if self._responder.open:
            self._responder.fail(message, "INTERNAL")

    def _fail(self, ended: Ended) -> None:
        code, message = _ERRORS[ended.outcome]
        self._responder.fail(ended.message or message, code)


class _Continuation:
    """What is known of one continuation, and what of it no response has carried yet."""

    def __init__(self, prefix: str) -> None:
        self.text = prefix
        self.tokens: list[TokenLogprobs] = []
        self.cumulative_logprob = 0.0
        self.outcome: Outcome | None = None
        self._began = False

    def add(self, output: Produced | Ended) -> None:
        self.text += output.text
        self.outcome = output.outcome
        if isinstance(output, Produced):
            self.tokens.append(output.token)
            self.cumulative_logprob += output.token.logprob

    def is_due(self, interval: int) -> bool:
        """Whether a stream should carry on what there is: its first piece, its last, or enough tokens."""
        return self.outcome is not None or bool(self.text and (not self._began or len(self.tokens) >= interval))

    def sent(self) -> None:
        self._began = self._began or bool(self.text)
        self.text = ""
        self.tokens.clear()


class GenerateReply(_Reply):
    """Answers a generation: certain pieces of text as they come, every `interval` tokens, or all of it at the end.

    A response has one entry for each of the n continuations; empty text where a piece of another one is sent.
    """

    def __init__(
        self,
        responder: Responder,
        call: GenerateCall,
        tokenization: Tokenization,
        requests: Sequence[GenerateRequest],
        interval: int,
    ) -> None:
        super().__init__(responder)
        self._call = call
        self._interval = interval
        self._tokenization = tokenization
        self._prompt_length = requests[0].prompt_length
        self._sequences = {id(request): _Continuation(call.prefix) for request in requests}

    def deliver(self, output: Output) -> None:
        """Take one output of one of the continuations."""
        if not self._responder.open:
            return  # the failure of another continuation has answered for all
        assert isinstance(output, Produced | Ended)
        if isinstance(output, Ended) and output.outcome is Outcome.FAILED:
            self._fail(output)
            return
        sequence = self._sequences[id(output.request)]
        sequence.add(output)
        final = all(each.outcome for each in self._sequences.values())
        if final or (self._call.stream and sequence.is_due(self._interval)):
            self._respond(final)

    def _respond(self, final: bool) -> None:
        sequences = list(self._sequences.values())
        reasons = [sequence.outcome.value if sequence.outcome else "" for sequence in sequences]
        values = {
            "text_output": np.array([sequence.text.encode() for sequence in sequences], dtype=np.object_),
            "finish_reason": np.array(reasons, dtype=np.object_),
            "cumulative_logprob": np.array([sequence.cumulative_logprob for sequence in sequences], dtype=np.float32),
            "num_input_tokens": np.array([self._prompt_length], dtype=np.uint32),
            "num_output_tokens": np.array([len(sequence.tokens) for sequence in sequences], dtype=np.uint32),
        }
        if "logprobs" in self._call.extras:
            values["logprobs"] = np.array([self._logprobs(sequence.tokens) for sequence in sequences], dtype=np.object_)
        wanted = {"text_output", *self._call.extras}
        tensors = [pb_utils.Tensor(name, value) for name, value in values.items() if name in wanted]
        self._responder.send(tensors, final)
        for sequence in sequences:
            sequence.sent()

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> str:
        """JSON as in NVIDIA's vLLM backend: for each token a map of id to log-probability, rank and text.

        The chosen token comes first, as in vLLM.
        """
        return json.dumps([self._token_logprobs(token) for token in tokens])

    def _token_logprobs(self, token: TokenLogprobs) -> dict[int, dict[str, Any]]:
        entries = {token.token: self._entry(token.token, token.logprob, None)}
        for rank, (candidate, logprob) in enumerate(token.top, start=1):
            entries[candidate] = self._entry(candidate, logprob, rank)
        return entries

    def _entry(self, token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        text = self._tokenization.backend.decode([token], skip_special_tokens=False)
        return {"logprob": logprob, "rank": rank, "decoded_token": text}


class EmbedReply(_Reply):
    """Answers one call of N texts when the last vector is there; the first failure answers for all."""

    def __init__(self, responder: Responder, call: EmbedCall, requests: Sequence[EmbedRequest]) -> None:
        super().__init__(responder)
        self._call = call
        self._requests = requests
        self._rows = {id(request): row for row, request in enumerate(requests)}
        self._vectors: list[Any] = [None] * len(requests)
        self._missing = len(requests)

    def deliver(self, output: Output) -> None:
        """Take one output of one of the requests."""
        if not self._responder.open:
            return  # another text of the call has already failed it
        if isinstance(output, Ended):
            self._fail(output)
            return
        assert isinstance(output, Embedded)
        self._vectors[self._rows[id(output.request)]] = output.vector
        self._missing -= 1
        if self._missing == 0:
            self._respond()

    def _respond(self) -> None:
        counts = np.array([request.total for request in self._requests], dtype=np.uint32)  # [N]
        if self._call.as_text:
            values = {
                "text_output": np.array([json.dumps(self._vectors[0].tolist())], dtype=np.object_),
                "num_input_tokens": counts,
                "num_output_tokens": np.zeros(1, dtype=np.uint32),
            }
            wanted = {"text_output", *self._call.extras}
        else:
            values = {"embedding": np.stack(self._vectors), "num_input_tokens": counts}  # [N, D], [N]
            wanted = set(values)
        tensors = [pb_utils.Tensor(name, value) for name, value in values.items() if name in wanted]
        self._responder.send(tensors, final=True)


def acknowledge(responder: Responder) -> None:
    """Answer a stop: one response with an empty text, so that it fits every protocol."""
    responder.send([pb_utils.Tensor("text_output", np.array([b""], dtype=np.object_))], final=True)
