"""The W3C trace context of a request: whose trace it belongs to."""

import json
from collections.abc import Mapping
from typing import Any

TRACE_KEYS = ("traceparent", "tracestate")
_LENGTH = 512  # characters of each, as long as W3C lets tracestate be


def trace_context(request: Any) -> Mapping[str, str]:
    """What Triton passes on where it traces in its mode opentelemetry, else request parameters of the same names.

    Triton takes the context from headers, which are the same for all requests of a gRPC stream; and of a request that
    a model makes it knows the context only until that model has returned from `execute`. Parameters go everywhere.
    """
    document = request.trace().get_context() or request.parameters()
    if not document or TRACE_KEYS[0] not in document:
        return {}
    context = json.loads(document)
    return {key: str(context[key])[:_LENGTH] for key in TRACE_KEYS if key in context}
