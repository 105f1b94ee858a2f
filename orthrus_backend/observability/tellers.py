"""Chooses who is told of calls, by the settings."""

import sys
from pathlib import Path

from orthrus_backend.config import EngineSettings
from orthrus_backend.default_model import MODEL_NAME, default_folder
from orthrus_backend.observability.journal import Teller
from orthrus_backend.observability.request_log import RequestLog
from orthrus_backend.request import Kind


def make_tellers(settings: EngineSettings) -> list[Teller]:
    """The request log and the spans, where they are on.

    Raises:
        ValueError: spans are on, but OpenTelemetry is not installed.
    """
    generator = _name(settings.model.model)
    embedder = settings.model.embedding_model
    models = {Kind.GENERATE: generator, Kind.EMBED: _name(embedder) if embedder else generator}
    tellers: list[Teller] = []
    if settings.observability.request_log:
        tellers.append(RequestLog(sys.stderr, models))
    if settings.observability.traces:
        try:
            from orthrus_backend.observability.spans import Spans
        except ImportError as error:
            raise ValueError(f'traces: {error}; install the extra: pip install "orthrus-backend[otel]"') from error
        tellers.append(Spans(models))
    return tellers


def _name(location: str) -> str:
    """What a model is called: a hub id as it is, a folder or file by its own name."""
    path = Path(location)
    if not location or path == default_folder():
        return MODEL_NAME
    return path.name if path.exists() else location
