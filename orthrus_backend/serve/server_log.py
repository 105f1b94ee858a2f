"""Passes on what the server writes, leaves out what tells a user nothing, and finds out why a start failed."""

import json
import re
import sys
import threading
from typing import IO

# A tritonserver without a GPU reports these as errors and warnings. They mean nothing else.
GPU_NOISE = (
    "CUDA driver version is insufficient for CUDA runtime version",
    "CudaDriverHelper has not been initialized",
    "Failed to initialize NVML",
    "DCGM unable to start",
    "no pinned memory pool",
)
NOISE = (
    "Signal (15) received.",  # from `TritonProcess.stop`, whose caller says what happens now
    # 2.51 looks twice whether a gRPC call was cancelled and may call it an error that the first look came too early.
    # The second look then deals with the call: nothing is lost.
    "HandleCancellation called even when the context was not cancelled",
)
# A start that fails says why in several lines, each with a stack trace; `reasons` says it once.
FAILED_START = (
    '"ERROR: Failed to create instance: ',
    '"failed to load ',
    '"failed to start ',
    "which has no loaded version",
    "error: creating server: ",
)
VALUE_ERROR = re.compile(r"'[^']*' version \d+: Internal: ValueError: ")  # ours: the message says it all


class ServerLog:
    """Copies a server's output, line by line and on a thread of its own, to this process's stderr."""

    def __init__(self, output: IO[bytes], *, gpu: bool, everything: bool) -> None:
        """Leaves out what is noise without a `gpu`, and what is noise for a user; with `everything`, nothing."""
        self._noise = () if everything else NOISE if gpu else NOISE + GPU_NOISE
        self._output = output
        self._everything = everything
        self._failed_start: list[str] = []
        self._thread = threading.Thread(target=self._copy, name="server-log", daemon=True)
        self._thread.start()

    def reasons(self) -> list[str]:
        """Why models were not loaded or the server not started, as far as it said. Call after the server has ended."""
        self._thread.join(timeout=2)
        found = dict.fromkeys(filter(None, map(failure, self._failed_start)))
        return list(found or dict.fromkeys(self._failed_start))

    def _copy(self) -> None:
        for raw in self._output:
            line = raw.decode(errors="replace").rstrip("\n")
            if line.startswith("{"):  # of the request log: what it holds of a caller's must not pass for Triton's words
                print(line, file=sys.stderr, flush=True)
                continue
            if any(words in line for words in self._noise):
                continue
            if any(words in line for words in FAILED_START):
                self._failed_start.append(line)
                if not self._everything:
                    continue
            print(line, file=sys.stderr, flush=True)


def failure(line: str) -> str:
    """The reason in a line of tritonserver's log that says why it cannot start; empty for any other line."""
    # E1130 10:41:06.355068 7512 model_lifecycle.cc:642] "failed to load 'orthrus' version 1: Internal: ..."
    _, _, quoted = line.partition('] "')
    try:
        message = str(json.loads('"' + quoted, strict=False))
    except ValueError:
        message = quoted.rstrip('"')
    what, failed, reason = message.partition("failed to load ")
    if failed and not what and line.startswith("E"):  # an information says the same without the reason
        reason = reason.split("\n\nAt:\n")[0].strip()  # where in the code: --log-level debug shows it
        own = VALUE_ERROR.match(reason)
        return reason[own.end() :] if own else failed + reason
    return message.strip() if message.startswith("failed to start ") else ""
