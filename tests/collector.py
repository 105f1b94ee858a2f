"""Receives OpenTelemetry spans as a collector does: OTLP over HTTP, protobuf from Python and JSON from Triton."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """What the tests look at. Ids are hexadecimal digits, times nanoseconds since 1970."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, str | int | float | list[str]]


class Collector:
    """Keeps all spans. A context manager, which receives from its start to its end."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        take = self._spans.extend

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                take(_from_json(body) if "json" in self.headers["Content-Type"] else _from_protobuf(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def variables(self) -> Mapping[str, str]:
        """What a process needs in its environment to send its spans here, and soon."""
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def all(self) -> list[ReceivedSpan]:
        """All spans so far."""
        return list(self._spans)

    def spans(self, trace: str, count: int, within: float = 15.0) -> list[ReceivedSpan]:
        """The spans of a trace when there are `count`, or those there are after `within` seconds."""
        deadline = time.monotonic() + within
        while True:
            found = [span for span in self._spans if span.trace == trace]
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _from_protobuf(body: bytes) -> Iterator[ReceivedSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {attribute.key: _value(attribute.value) for attribute in span.attributes}
                yield ReceivedSpan(
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=attributes,
                )


def _value(value: Any) -> Any:
    if value.WhichOneof("value") == "array_value":
        return [_value(entry) for entry in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))


def _from_json(body: bytes) -> Iterator[ReceivedSpan]:
    for resource in json.loads(body)["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                times = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                yield ReceivedSpan(span["traceId"], span["spanId"], span["parentSpanId"], span["name"], *times, {})
