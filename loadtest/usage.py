"""What a target takes of the machine while it is measured: processor time, and memory at its peak.

Memory is the sum of the proportional set sizes (PSS) of all its processes: a page that several share counts once.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

INTERVAL = 2.0  # seconds between two looks; one takes some milliseconds of processor time for each process


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all processes together."""

    seconds: float  # that were watched
    cpu_seconds: float
    driver_cpu_seconds: float  # of the process that sends the requests
    peak_pss: int  # bytes


class UsageWatch:
    """Looks at processes until it is asked for what it saw."""

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]]) -> None:
        self._processes = processes
        self._started, self._driver = time.perf_counter(), time.process_time()
        self._cpu: dict[int, tuple[float, float]] = {}  # by process id: at the first look and at the last one
        self._peak = 0
        self._ended = threading.Event()
        self._look(first=True)
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def finish(self) -> Usage:
        """Look a last time, and stop."""
        self._ended.set()
        self._thread.join()
        self._look()
        cpu = sum(last - first for first, last in self._cpu.values())
        seconds, driver = time.perf_counter() - self._started, time.process_time() - self._driver
        return Usage(seconds, cpu, driver, self._peak)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._look()

    def _look(self, first: bool = False) -> None:
        memory = 0
        for process in self._processes():
            try:
                times = process.cpu_times()
                memory += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue  # it has ended; what it used until the last look is known
            now = times.user + times.system
            before, _ = self._cpu.get(process.pid, (now if first else 0.0, now))  # what is new later began at zero
            self._cpu[process.pid] = (before, now)
        self._peak = max(self._peak, memory)
