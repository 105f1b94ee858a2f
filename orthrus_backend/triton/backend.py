"""The backend model: loads the engine, hands it Triton's requests, and ends it in order."""

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orthrus_backend.accounting import count_turned_away
from orthrus_backend.assembly import build_service
from orthrus_backend.config import EngineSettings
from orthrus_backend.drain_file import DrainFile
from orthrus_backend.observability.entry import Record
from orthrus_backend.observability.journal import Journal
from orthrus_backend.observability.tellers import make_tellers
from orthrus_backend.triton.logs import forward_logs
from orthrus_backend.triton.metrics_export import MetricsExport
from orthrus_backend.triton.parent import end_with_parent
from orthrus_backend.triton.reception import Reception
from orthrus_backend.triton.roster import Roster

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
        self._drain_timeout = settings.drain.drain_timeout
        self._finalizing = threading.Event()
        self._reading = threading.Lock()
        self._drain_file = DrainFile(Path(settings.drain.drain_file)) if settings.drain.drain_file else None
        self._roster = Roster(args["model_name"], server=os.getppid())
        self._journal = Journal(make_tellers(settings))
        self._service = build_service(settings, on_failure=self._leave)
        self._reception = Reception(
            self._service,
            settings.limits,
            settings.streams.stream_interval,
            on_end=self._tell,
            on_stop=self._roster.tell,
        )
        self._export = MetricsExport(self._service.engine.metrics, engine=args["model_instance_name"])
        self._roster.join(on_stop=self._stop)
        if self._drain_file is not None:
            threading.Thread(target=self._drain_when_asked, name="orthrus-drain", daemon=True).start()

    def is_ready(self) -> bool:
        """Whether requests are taken. Tritons of 2026 ask; to older ones a model that was loaded is ready."""
        return self._service.engine.alive

    def execute(self, requests: Sequence[Any]) -> None:
        """Accept requests; their answers come later, from the engine's delivery thread."""
        with self._reading:
            for request in requests:
                self._reception.receive(request)

    def finalize(self) -> None:
        """Finish what runs, within the time that is given for it, and let go of everything of Triton's.

        A metric that the interpreter finds alive at its own end would talk to Triton through what is gone by then.
        """
        self._finalizing.set()
        self._service.close(self._drain_timeout)
        self._roster.close()
        self._export.close()
        del self._export
        self._journal.close()

    def _drain_when_asked(self) -> None:
        assert self._drain_file is not None
        while not self._drain_file.asks:
            if self._finalizing.wait(_DRAIN_POLL_SECONDS):
                return
        _log.info("asked to finish: new requests are refused")
        self._service.close(self._drain_timeout)
        self._drain_file.release()

    def _stop(self, request_id: str) -> None:
        """What another engine was asked to stop. It waits for a request that is being read, which may be the one."""
        with self._reading:
            self._service.engine.cancel_id(request_id)

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
