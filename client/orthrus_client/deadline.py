"""`Deadline`: by when a call has to be over, however many requests and attempts it takes."""

import time

from orthrus_client.errors import DeadlineExceeded, deadline_error

GRACE = 1.0  # seconds
LONGEST = 1e9  # seconds; more does not fit Triton's type


class Deadline:
    """`timeout` seconds from now; never, when that is None."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds until then, at least 0; None when there is no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def for_server(self) -> int:
        """The same as Triton's parameter `timeout`, in microseconds, 0 when there is no end.

        A little later, so that the caller hears of it from this side; the server then ends what no stop has reached.
        """
        left = self.left()
        return 0 if left is None else int((min(left, LONGEST) + GRACE) * 1e6)

    def passed(self) -> bool:
        """Whether no time is left."""
        return self._end is not None and time.monotonic() >= self._end

    def error(self) -> DeadlineExceeded:
        """What a call raises that was not finished in time."""
        return deadline_error(self.timeout)
