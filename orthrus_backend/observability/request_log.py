"""One line of JSON for each call that has ended. No prompt, no text, and no error's message, which may quote one."""

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from orthrus_backend.observability.entry import Record
from orthrus_backend.request import Kind

_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-")


class RequestLog:
    """Writes lines like `{"time": "...", "id": "q-7", "kind": "generate", ..., "outcome": "finished"}`.

    Seconds count from the arrival of the call; null stands for what did not happen. `error` is a code such as
    INVALID_ARG. JSON escapes what could end a line or move a terminal's cursor.
    """

    def __init__(self, stream: TextIO, models: Mapping[Kind, str]) -> None:
        """`models` are the names of what serves each kind."""
        self._stream = stream
        self._models = models

    def tell(self, record: Record) -> None:
        """Write the line of one call."""
        wall = time.time() - (time.monotonic() - record.ended)
        trace = _TRACE_ID.match(record.parent.get("traceparent", ""))
        fields = {
            "time": datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds"),
            "id": record.id,
            "trace_id": trace and trace[1],
            "kind": record.kind,
            "model": self._models[record.kind],
            "adapter": record.adapter,
            "requests": record.requests,
            "input_tokens": record.input_tokens,
            "output_tokens": record.output_tokens,
            "queue_seconds": _seconds(record.arrived, record.started),
            "first_token_seconds": _seconds(record.arrived, record.first_token),
            "total_seconds": _seconds(record.arrived, record.ended),
            "outcome": record.end,
            "error": record.error or None,
        }
        self._stream.write(json.dumps(fields) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is held back."""


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else round(end - start, 6)
