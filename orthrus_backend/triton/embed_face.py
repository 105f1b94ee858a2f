"""The face of embeddings: one request in, one response out, so that plain `infer` works over HTTP and gRPC.

Asks the decoupled backend model and passes its answer on. Knows nothing of embeddings.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from orthrus_backend.triton.parent import end_with_parent
from orthrus_backend.triton.responder import CODED, Responder, split_code
from orthrus_backend.triton.trace_context import trace_context

_BACKEND = "orthrus"
_OUTPUTS = ("embedding", "num_input_tokens")
_MAX_WAITING = 512  # calls that wait for the backend at once; each one holds a sleeping thread


class TritonPythonModel:
    """Waits for many answers at once. Triton's own asynchronous call would do the same on asyncio's few threads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Note what there is to pass on."""
        end_with_parent()
        self._inputs = [tensor["name"] for tensor in json.loads(args["model_config"])["input"]]
        self._waiters = ThreadPoolExecutor(_MAX_WAITING, thread_name_prefix="orthrus-face")

    def execute(self, requests: Sequence[Any]) -> None:
        """Pass requests on; their answers come later."""
        for request in requests:
            responder = Responder(request)
            try:
                self._waiters.submit(self._answer, self._forwarded(request), responder)
            except ValueError as error:
                responder.fail(str(error), "INVALID_ARG")

    def finalize(self) -> None:
        """Wait for the answers that are still to come."""
        self._waiters.shutdown()

    def _forwarded(self, request: Any) -> Any:
        tensors = [pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs]
        task = pb_utils.Tensor("task", np.array([b"embed"], dtype=np.object_))
        return pb_utils.InferenceRequest(
            model_name=_BACKEND,
            request_id=request.request_id(),
            inputs=[*(tensor for tensor in tensors if tensor is not None), task],
            requested_output_names=list(_OUTPUTS),
            parameters={**_passed_on(request), **trace_context(request), CODED: True},
        )

    def _answer(self, forwarded: Any, responder: Responder) -> None:
        try:
            answers = [r for r in forwarded.exec(decoupled=True) if r.has_error() or r.output_tensors()]
            assert len(answers) == 1, f"the backend answered {len(answers)} times"
            if answers[0].has_error():
                responder.fail(*split_code(answers[0].error().message()))
            else:
                responder.send(answers[0].output_tensors(), final=True)
        except Exception as error:  # whatever it is, the caller must not wait for ever
            if responder.open:
                responder.fail(f"embed failed: {error}", "INTERNAL")


def _passed_on(request: Any) -> dict[str, str | int | bool]:
    """The request's parameters; Triton takes no floats here, and the backend reads numbers from text as well."""
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    return {name: str(value) if isinstance(value, float) else value for name, value in parameters.items()}
