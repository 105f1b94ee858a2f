"""OpenTelemetry spans of calls that came with a trace context. The only module that needs OpenTelemetry.

Where the spans go is said by OpenTelemetry's own environment variables, OTEL_EXPORTER_OTLP_ENDPOINT first of all.
Attributes follow its semantic conventions for generative AI; no span holds a text.
"""

import time
from collections.abc import Iterator, Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from orthrus_backend.observability.entry import Record
from orthrus_backend.request import Kind

SERVICE = "orthrus"  # unless OTEL_SERVICE_NAME says otherwise


class Spans:
    """Makes a span of each call, inside the caller's trace, and inside it one for each stage.

    A call whose caller does not sample it leaves no span.
    """

    def __init__(self, models: Mapping[Kind, str], exporter: SpanExporter | None = None) -> None:
        """`models` are the names of what serves each kind."""
        self._models = models
        self._propagator = TraceContextTextMapPropagator()
        resource = Resource.create({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("orthrus_backend")

    def tell(self, record: Record) -> None:
        """Make the spans of one call; they are sent later, by a thread of OpenTelemetry's own."""
        context = self._propagator.extract(record.parent)
        if not get_current_span(context).get_span_context().is_valid:
            return
        epoch = time.time_ns() - time.monotonic_ns()
        operation = "embeddings" if record.kind is Kind.EMBED else "chat" if record.chat else "text_completion"
        model = self._models[record.kind]
        start = _nanoseconds(record.arrived, epoch)
        span = self._tracer.start_span(f"{operation} {model}", context, SpanKind.SERVER, start_time=start)
        span.set_attributes({"gen_ai.operation.name": operation, "gen_ai.request.model": model, **_attributes(record)})
        inside = set_span_in_context(span, context)
        for stage, began, ended in _stages(record):
            child = self._tracer.start_span(stage, inside, start_time=_nanoseconds(began, epoch))
            child.end(_nanoseconds(ended, epoch))
        if record.error:
            span.set_status(Status(StatusCode.ERROR, record.end))
        span.end(_nanoseconds(record.ended, epoch))

    def close(self) -> None:
        """Send what is still here."""
        self._provider.shutdown()


def _attributes(record: Record) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.provider.name": "orthrus",
        "gen_ai.usage.input_tokens": record.input_tokens,
        "orthrus.outcome": record.end,
    }
    if record.id:
        attributes["gen_ai.response.id"] = record.id
    if record.adapter:
        attributes["orthrus.adapter"] = record.adapter
    if record.kind is Kind.GENERATE:
        attributes["gen_ai.usage.output_tokens"] = record.output_tokens
        attributes["gen_ai.response.finish_reasons"] = record.finish_reasons
    if record.first_token is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.first_token - record.arrived
    if record.error:
        attributes["error.type"] = record.error
    return attributes


def _stages(record: Record) -> Iterator[tuple[str, float, float]]:
    """Name, start and end of what happened one after the other."""
    if not record.requests:
        return
    if record.started is None:
        yield "queue", record.arrived, record.ended
        return
    yield "queue", record.arrived, record.started
    if record.kind is Kind.EMBED:
        yield "embed", record.started, record.ended
    elif record.first_token is None:
        yield "prefill", record.started, record.ended
    else:
        yield "prefill", record.started, record.first_token
        yield "decode", record.first_token, record.ended


def _nanoseconds(at: float, epoch: int) -> int:
    """Nanoseconds since 1970 of a time of `time.monotonic`."""
    return epoch + int(at * 1e9)
