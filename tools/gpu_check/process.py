"""Runs a part of the check in a process of its own, so that whatever ends it takes nothing else with it.

A fault on a GPU can leave a process that cannot use it any more, and memory is surely free only when its process has
ended. Knows nothing of what the parts do.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

T = TypeVar("T")
_ITEM, _END, _FAULT = "item", "end", "fault"


class PartError(RuntimeError):
    """A part ended before its time; the message says how."""


def run_apart(work: Callable[[], Iterator[T]], anew: bool) -> Iterator[T]:
    """What `work` yields, as it comes. What it prints goes to stderr.

    Args:
        work: may be pickled, if the process is to begin anew.
        anew: start Python again, which takes some seconds for what it imports. A forked process cannot use a GPU that
            the one before it has as much as looked at.

    Raises:
        PartError: it raised something, or its process was killed.
    """
    context: BaseContext = multiprocessing.get_context("spawn" if anew else "fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, sender))  # type: ignore[attr-defined]  # only a base to mypy
    process.start()
    sender.close()  # from here on the end of the process is the end of the stream
    left = False
    try:
        while True:
            tag, content = receiver.recv()
            if tag == _FAULT:
                raise PartError(content)
            if tag == _END:
                return
            yield content
    except EOFError:
        process.join()
        raise PartError(f"its process ended with status {process.exitcode}") from None
    except (GeneratorExit, KeyboardInterrupt):
        left = True
        raise
    finally:
        if left:
            process.terminate()
        process.join()
        receiver.close()


def _work(work: Callable[[], Iterator[Any]], sender: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what a part has started ends with it
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        for item in work():
            sender.send((_ITEM, item))
        sender.send((_END, None))
    except Exception as error:
        traceback.print_exc()
        sender.send((_FAULT, f"{type(error).__name__}: {error}"))
