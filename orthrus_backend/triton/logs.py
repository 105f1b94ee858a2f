"""Sends the project's log records to Triton's own log, so that an operator reads one log."""

import logging

import triton_python_backend_utils as pb_utils


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        else:
            pb_utils.Logger.log_info(text)


def forward_logs() -> None:
    """Forward everything below `orthrus_backend` from level INFO on; once."""
    logger = logging.getLogger("orthrus_backend")
    if not any(isinstance(handler, _TritonHandler) for handler in logger.handlers):
        logger.addHandler(_TritonHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
