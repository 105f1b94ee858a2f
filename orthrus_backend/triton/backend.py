"""The backend model: hands Triton's requests to the engine, and nothing else.

`execute` decodes and returns; answers leave from the engine's delivery thread. It never raises for a request's fault.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orthrus_backend.admission import QueueFullError
from orthrus_backend.assembly import build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.drain_file import DrainFile
from orthrus_backend.engine import EngineClosedError
from orthrus_backend.request import EmbedRequest, GenerateRequest, Kind, Request
from orthrus_backend.triton.inputs import EmbedCall, GenerateCall, StopCall, read_call
from orthrus_backend.triton.logs import forward_logs
from orthrus_backend.triton.metrics_export import MetricsExport
from orthrus_backend.triton.parameters import read_timeout
from orthrus_backend.triton.parent import end_with_parent
from orthrus_backend.triton.replies import EmbedReply, GenerateReply, acknowledge
from orthrus_backend.triton.responder import Responder
from orthrus_backend.triton.size import request_bytes

_DRAIN_POLL_SECONDS = 0.2
_LAST_WORDS_SECONDS = 1.0  # for the last answers to get from this process to Triton
_log = logging.getLogger(__name__)


class TritonPythonModel:
    """One engine for each instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load and check everything; an exception here is shown by Triton as the reason why the model is not ready."""
        forward_logs()
        end_with_parent()
        parameters = {
            name: value["string_value"] for name, value in json.loads(args["model_config"])["parameters"].items()
        }
        if args["model_instance_kind"] == "GPU" and parameters.get("device", "") in ("", "auto"):
            parameters["device"] = f"cuda:{args['model_instance_device_id']}"
        settings = EngineSettings.from_parameters(parameters)
        self._limits = settings.limits
        self._drain_timeout = settings.drain.drain_timeout
        self._finalizing = threading.Event()
        self._drain_file = DrainFile(Path(settings.drain.drain_file)) if settings.drain.drain_file else None
        self._service = build_service(settings, on_failure=self._leave)
        self._export = MetricsExport(self._service.engine.metrics, instance=args["model_instance_name"])
        if self._drain_file is not None:
            threading.Thread(target=self._drain_when_asked, name="orthrus-drain", daemon=True).start()

    def is_ready(self) -> bool:
        """Whether requests are taken. Tritons of 2026 ask; to older ones a model that was loaded is ready."""
        return self._service.engine.alive

    def execute(self, requests: Sequence[Any]) -> None:
        """Accept requests; their answers come later."""
        for request in requests:
            responder = Responder(request)
            try:
                self._accept(request, responder)
            except ValueError as error:
                responder.fail(str(error), "INVALID_ARG")
            except (EngineClosedError, QueueFullError) as error:
                responder.fail(str(error), "UNAVAILABLE")
            except Exception as error:
                _log.exception("a request could not be read")
                responder.fail(f"internal error: {error}", "INTERNAL")

    def finalize(self) -> None:
        """Finish what runs, within the time that is given for it, and let go of everything of Triton's.

        A metric that the interpreter finds alive at its own end would talk to Triton through what is gone by then.
        """
        self._finalizing.set()
        self._service.close(self._drain_timeout)
        self._export.close()
        del self._export

    def _drain_when_asked(self) -> None:
        assert self._drain_file is not None
        while not self._drain_file.asks:
            if self._finalizing.wait(_DRAIN_POLL_SECONDS):
                return
        _log.info("asked to finish: new requests are refused")
        self._service.close(self._drain_timeout)
        self._drain_file.release()

    def _leave(self) -> None:
        """End this process: Triton has no word for a model that cannot work any more, but it notices a dead one."""
        _log.error("the engine cannot go on; its process ends")
        self._export.close()
        time.sleep(_LAST_WORDS_SECONDS)
        os._exit(1)

    def _accept(self, request: Any, responder: Responder) -> None:
        arrival, timeout = time.monotonic(), read_timeout(request) or self._limits.default_timeout
        if (size := request_bytes(request)) > self._limits.max_request_bytes:
            limit = self._limits.max_request_bytes
            raise ValueError(f"the request has {size} bytes; the limit is {limit} (max_request_bytes)")
        call = read_call(request)
        accepted: Sequence[Request]
        match call:
            case StopCall():
                self._stop(request.request_id(), responder)
                return
            case GenerateCall():
                accepted = self._generations(call, request.request_id(), responder)
            case EmbedCall():
                accepted = self._embeddings(call, request.request_id(), responder)
        for each in accepted:
            each.call = responder.call
            each.deadline = arrival + timeout if timeout else None
        self._service.engine.submit(accepted)

    def _generations(self, call: GenerateCall, request_id: str, responder: Responder) -> Sequence[GenerateRequest]:
        self._service.engine.check_room(Kind.GENERATE, call.params.n)
        needs_logprobs = bool(call.extras & {"cumulative_logprob", "logprobs"})
        accepted = self._service.intake.generate.continuations(
            call.prompt, call.params, request_id=request_id, needs_logprobs=needs_logprobs
        )
        reply = GenerateReply(responder, call, self._service.tokenization, accepted)
        for generation in accepted:
            generation.reply = reply
        return accepted

    def _embeddings(self, call: EmbedCall, request_id: str, responder: Responder) -> Sequence[EmbedRequest]:
        if len(call.texts) > (limit := self._limits.max_texts_per_request):
            raise ValueError(f"{len(call.texts)} texts in one request; the limit is {limit} (max_texts_per_request)")
        self._service.engine.check_room(Kind.EMBED, len(call.texts))
        accepted = []
        for position, text in enumerate(call.texts):
            try:
                accepted.append(self._service.intake.embed(text, call.params, request_id=request_id))
            except ValueError as error:
                raise ValueError(f"text {position}: {error}" if len(call.texts) > 1 else str(error)) from error
        reply = EmbedReply(responder, call, accepted)
        for embedding in accepted:
            embedding.reply = reply
        return accepted

    def _stop(self, request_id: str, responder: Responder) -> None:
        if not request_id:
            raise ValueError("stop: the id of the request to cancel is needed as this request's id")
        self._service.engine.cancel_id(request_id)
        acknowledge(responder)
