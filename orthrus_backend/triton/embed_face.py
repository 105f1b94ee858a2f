"""The face of embeddings: one request in, one response out, so that plain `infer` works over HTTP and gRPC.

Asks the decoupled backend model from an asyncio loop of its own and passes its answer on. Knows nothing of embeddings.
"""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_BACKEND = "orthrus"
_OUTPUTS = ("embedding", "num_input_tokens")


class TritonPythonModel:
    """Waits for many answers at once on one thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the loop."""
        self._inputs = [tensor["name"] for tensor in json.loads(args["model_config"])["input"]]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="orthrus-face", daemon=True)
        self._thread.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Pass requests on; their answers come later."""
        for request in requests:
            forwarded = self._forwarded(request)
            asyncio.run_coroutine_threadsafe(self._answer(forwarded, request.get_response_sender()), self._loop)

    def finalize(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _forwarded(self, request: Any) -> Any:
        tensors = [pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs]
        task = pb_utils.Tensor("task", np.array(["embed"], dtype=np.object_))
        return pb_utils.InferenceRequest(
            model_name=_BACKEND,
            request_id=request.request_id(),
            inputs=[*(tensor for tensor in tensors if tensor is not None), task],
            requested_output_names=list(_OUTPUTS),
            parameters=json.loads(request.parameters() or "{}"),
        )

    async def _answer(self, forwarded: Any, sender: Any) -> None:
        answer = None
        try:
            async for response in await forwarded.async_exec(decoupled=True):
                if response.has_error() or response.output_tensors():
                    answer = response
            assert answer is not None, "the backend answered nothing"
            if answer.has_error():
                answer = pb_utils.InferenceResponse(error=answer.error())
            else:
                answer = pb_utils.InferenceResponse(output_tensors=answer.output_tensors())
        except Exception as error:  # whatever it is, the caller must not wait for ever
            answer = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"embed failed: {error}"))
        sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
