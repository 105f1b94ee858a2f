"""`Deadline`: by when a call has to be over, however many requests and attempts it takes."""

import time

from orthrus_client.errors import DeadlineExceeded, deadline_error


class Deadline:
    """`timeout` seconds from now; never, when that is None."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds until then, at least 0; None when there is no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Whether no time is left."""
        return self._end is not None and time.monotonic() >= self._end

    def error(self) -> DeadlineExceeded:
        """What a call raises that was not finished in time."""
        return deadline_error(self.timeout)
