"""When a call that found the server unavailable is made again. Nothing else is: a refusal or a fault would come again.

Waits are drawn between zero and a limit that doubles from attempt to attempt, so that callers whom one overload turned
away do not all come back at once.
"""

from threading import Event

from tenacity import (
    AsyncRetrying,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_before_delay,
    stop_when_event_set,
)
from tenacity.stop import stop_base
from tenacity.wait import wait_random_exponential

from orthrus_client.deadline import Deadline
from orthrus_client.errors import Unavailable

FIRST_WAIT = 0.25  # seconds, at most, before the second attempt
LONGEST_WAIT = 4.0

_IF = retry_if_exception_type(Unavailable)
_WAIT = wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT)


def checked_retries(retries: int) -> int:
    """`retries`, if it is a number of retries; else raises `ValueError`."""
    if retries < 0:
        raise ValueError(f"retries is at least 0, which means none, not {retries}")
    return retries


def retrying(retries: int, deadline: Deadline, abandoned: Event) -> Retrying:
    """What calls a function up to `retries` times again, as long as a wait ends before `deadline`.

    From when `abandoned` is set, it waits no more and calls nothing again.
    """
    stop = _stop(retries, deadline) | stop_when_event_set(abandoned)
    return Retrying(retry=_IF, stop=stop, wait=_WAIT, sleep=sleep_using_event(abandoned), reraise=True)


def async_retrying(retries: int, deadline: Deadline) -> AsyncRetrying:
    """The same for coroutine functions, which are cancelled rather than abandoned."""
    return AsyncRetrying(retry=_IF, stop=_stop(retries, deadline), wait=_WAIT, reraise=True)


def _stop(retries: int, deadline: Deadline) -> stop_base:
    attempts = stop_after_attempt(retries + 1)
    left = deadline.left()
    return attempts if left is None else attempts | stop_before_delay(left)
