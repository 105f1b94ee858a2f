"""Hands answers to their receivers on a thread of its own, and asks receivers whether they still want them.

A slow receiver never stalls a step. Knows nothing of scheduling or protocols.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from orthrus_backend.outputs import Output
from orthrus_backend.request import Request
from orthrus_backend.turns import Turns

POLL_SECONDS = 0.1
POLLED = 8  # receivers that are asked at once: in Triton each one is a message to the server and back, amid a step
_log = logging.getLogger(__name__)


class Reply(Protocol):
    """Where the answers of one or more requests go. Methods are called on the delivery thread only."""

    def deliver(self, output: Output) -> None:
        """Take one output; after the last one of every request nothing follows."""

    def cancelled(self) -> bool:
        """Whether the receiver has gone; not asked again after the last output."""

    def abort(self, message: str) -> None:
        """`deliver` or `cancelled` raised: say so instead, if an answer is still due."""


class Delivery:
    """One thread between the engine and its receivers. `cancel` is told of requests whose receiver has gone."""

    def __init__(self, cancel: Callable[[Request], None]) -> None:
        self._cancel = cancel
        self._outputs: SimpleQueue[Sequence[Output] | None] = SimpleQueue()
        self._watched: dict[int, dict[int, Request]] = {}  # by identity of their receiver, which is asked once for all
        self._turns = Turns(POLLED)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="orthrus-delivery", daemon=True)
        self._thread.start()

    def watch(self, requests: Sequence[Request]) -> None:
        """Expect outputs for these requests."""
        with self._lock:
            for request in requests:
                self._watched.setdefault(id(request.reply), {})[id(request)] = request

    def put(self, outputs: Sequence[Output]) -> None:
        """Pass on outputs, in order; returns at once."""
        if outputs:
            self._outputs.put(outputs)

    def close(self) -> None:
        """Deliver what is queued, then stop."""
        self._outputs.put(None)
        self._thread.join()

    def _run(self) -> None:
        next_poll = time.monotonic() + POLL_SECONDS
        while True:
            try:
                outputs = self._outputs.get(timeout=max(next_poll - time.monotonic(), 0.0))
                if outputs is None:
                    return
                for output in outputs:
                    self._deliver(output)
            except Empty:
                pass
            if time.monotonic() >= next_poll:
                self._poll()
                next_poll = time.monotonic() + POLL_SECONDS

    def _deliver(self, output: Output) -> None:
        request = output.request
        if output.final:
            self._unwatch(request)
        try:
            request.reply.deliver(output)
        except Exception as error:
            self._give_up([request], error)

    def _poll(self) -> None:
        with self._lock:
            watched = [list(requests.values()) for requests in self._turns.take(list(self._watched.values()))]
        for requests in watched:
            try:
                if requests[0].reply.cancelled():
                    for request in requests:
                        self._cancel(request)
            except Exception as error:
                self._give_up(requests, error)

    def _give_up(self, requests: Sequence[Request], error: Exception) -> None:
        """A receiver raised: it must not take the thread, and with it everybody's answers, along."""
        _log.exception("request %s: its receiver failed; it is cancelled", requests[0].id)
        for request in requests:
            self._unwatch(request)
            self._cancel(request)
        with suppress(Exception):  # it was already worse than this
            requests[0].reply.abort(f"the answer could not be sent: {error}")

    def _unwatch(self, request: Request) -> None:
        with self._lock:
            requests = self._watched.get(id(request.reply), {})
            requests.pop(id(request), None)
            if not requests:
                self._watched.pop(id(request.reply), None)
