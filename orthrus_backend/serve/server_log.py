"""Passes on what the server writes, leaves out what only says that there is no GPU, and remembers why a load failed."""

import sys
import threading
from collections import deque
from typing import IO

# A tritonserver without a GPU reports these as errors and warnings. They mean nothing else.
GPU_NOISE = (
    "CUDA driver version is insufficient for CUDA runtime version",
    "CudaDriverHelper has not been initialized",
    "Failed to initialize NVML",
    "DCGM unable to start",
    "no pinned memory pool",
)
KEPT_REASONS = 8


class ServerLog:
    """Copies a server's output, line by line and on a thread of its own, to this process's stderr."""

    def __init__(self, output: IO[bytes], *, gpu: bool) -> None:
        self._noise = () if gpu else GPU_NOISE
        self._output = output
        self._reasons: deque[str] = deque(maxlen=KEPT_REASONS)
        self._thread = threading.Thread(target=self._copy, name="server-log", daemon=True)
        self._thread.start()

    def reasons(self) -> list[str]:
        """Why models were not loaded or the server not started, as far as it said. Call after the server has ended."""
        self._thread.join(timeout=2)
        return list(dict.fromkeys(self._reasons))

    def _copy(self) -> None:
        for raw in self._output:
            line = raw.decode(errors="replace").rstrip("\n")
            if any(words in line for words in self._noise):
                continue
            print(line, file=sys.stderr, flush=True)
            if reason := failure(line):
                self._reasons.append(reason)


def failure(line: str) -> str:
    """The reason in a line of tritonserver's log that says why it cannot start; empty for any other line."""
    # E1130 10:41:06.355068 7512 model_lifecycle.cc:642] "failed to load 'orthrus' version 1: Internal: ..."
    _, load_failed, reason = line.partition(' "failed to load ')
    if load_failed:
        return "failed to load " + reason.removesuffix('"').split("\\n\\nAt:")[0].replace("\\n", "\n").strip()
    _, start_failed, reason = line.partition(' "failed to start ')
    return "failed to start " + reason.rstrip('" ') if start_failed else ""
