"""The backend model: hands Triton's requests to the engine, and nothing else.

`execute` decodes and returns; answers leave from the engine's delivery thread. It never raises for a request's fault.
"""

import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from orthrus_backend.accounting import count_turned_away
from orthrus_backend.assembly import build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.engine import EngineClosedError
from orthrus_backend.observability.entry import Entry, Record
from orthrus_backend.observability.journal import Journal
from orthrus_backend.observability.tellers import make_tellers
from orthrus_backend.triton.inputs import EmbedCall, GenerateCall, StopCall, asked_kind, read_call
from orthrus_backend.triton.logs import forward_logs
from orthrus_backend.triton.metrics_export import MetricsExport
from orthrus_backend.triton.parent import end_with_parent
from orthrus_backend.triton.replies import EmbedReply, GenerateReply
from orthrus_backend.triton.responder import Responder
from orthrus_backend.triton.trace_context import trace_context

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
        self._drain_timeout = settings.drain_timeout
        self._journal = Journal(make_tellers(settings))
        self._service = build_service(settings, on_failure=self._leave)
        self._export = MetricsExport(self._service.engine.metrics, engine=args["model_instance_name"])

    def execute(self, requests: Sequence[Any]) -> None:
        """Accept requests; their answers come later."""
        for request in requests:
            entry = Entry(on_end=self._tell)
            responder = Responder(request, on_final=entry.close)
            try:
                with entry.intake():
                    self._accept(request, responder, entry)
            except ValueError as error:
                responder.fail(str(error), "INVALID_ARG")
            except EngineClosedError as error:
                responder.fail(str(error), "UNAVAILABLE")
            except Exception as error:
                _log.exception("a request could not be read")
                responder.fail(f"internal error: {error}", "INTERNAL")

    def finalize(self) -> None:
        """Finish what runs, within the time that is given for it."""
        self._service.close(self._drain_timeout)
        self._export.close()
        self._journal.close()

    def _leave(self) -> None:
        """End this process: Triton has no word for a model that cannot work any more, but it notices a dead one."""
        _log.error("the engine cannot go on; its process ends")
        self._export.close()
        self._journal.close()
        time.sleep(_LAST_WORDS_SECONDS)
        os._exit(1)

    def _tell(self, record: Record) -> None:
        if not record.requests:
            count_turned_away(self._service.engine.metrics, record.kind, record.end)
        self._journal.put(record)

    def _accept(self, request: Any, responder: Responder, entry: Entry) -> None:
        entry.id = request.request_id()
        entry.kind = asked_kind(request)
        entry.parent = trace_context(request)
        call = read_call(request)
        match call:
            case StopCall():
                entry.forget()
                self._stop(request.request_id(), responder)
            case GenerateCall():
                self._generate(call, request.request_id(), responder, entry)
            case EmbedCall():
                self._embed(call, request.request_id(), responder, entry)

    def _generate(self, call: GenerateCall, request_id: str, responder: Responder, entry: Entry) -> None:
        needs_logprobs = bool(call.extras & {"cumulative_logprob", "logprobs"})
        accepted = self._service.intake.generate.continuations(
            call.prompt, call.params, request_id=request_id, needs_logprobs=needs_logprobs
        )
        reply = GenerateReply(responder, call, self._service.tokenization, accepted)
        for generation in accepted:
            generation.reply = reply
        entry.became(accepted, chat=call.is_chat)
        self._service.engine.submit(accepted)

    def _embed(self, call: EmbedCall, request_id: str, responder: Responder, entry: Entry) -> None:
        accepted = []
        for position, text in enumerate(call.texts):
            try:
                accepted.append(self._service.intake.embed(text, call.params, request_id=request_id))
            except ValueError as error:
                raise ValueError(f"text {position}: {error}" if len(call.texts) > 1 else str(error)) from error
        reply = EmbedReply(responder, call, accepted)
        for embedding in accepted:
            embedding.reply = reply
        entry.became(accepted)
        self._service.engine.submit(accepted)

    def _stop(self, request_id: str, responder: Responder) -> None:
        if not request_id:
            raise ValueError("stop: the id of the request to cancel is needed as this request's id")
        self._service.engine.cancel_id(request_id)
        responder.finish()
