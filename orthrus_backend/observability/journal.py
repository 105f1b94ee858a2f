"""Takes the records of calls off the threads that answer them, and gives them to whoever tells of them.

One thread and a bounded queue: when a reader is slow, such as a terminal that was stopped, records are dropped and no
answer waits.
"""

import logging
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from orthrus_backend.observability.entry import Record

CAPACITY = 10_000  # records
CLOSE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Teller(Protocol):
    """Tells of calls. Both methods are called on the journal's thread."""

    def tell(self, record: Record) -> None:
        """Tell of one call."""

    def close(self) -> None:
        """Pass on what is still held back."""


class Journal:
    """Passes records on to the tellers, in order."""

    def __init__(self, tellers: Sequence[Teller]) -> None:
        self._tellers = tellers
        self._records: queue.Queue[Record | None] = queue.Queue(CAPACITY)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="orthrus-journal", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Pass on a record; returns at once."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Pass on what is queued and stop; give up on a reader that takes longer than `CLOSE_SECONDS`."""
        with suppress(queue.Full):
            self._records.put_nowait(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        reported = 0
        while (record := self._records.get()) is not None:
            for teller in self._tellers:
                try:
                    teller.tell(record)
                except Exception:  # whatever it is, the next call is told of again
                    _log.exception("a call could not be told of")
            if self._dropped != reported:
                _log.warning("%d calls so far could not be told of: the log or trace reader is slow", self._dropped)
                reported = self._dropped
        for teller in self._tellers:
            teller.close()
