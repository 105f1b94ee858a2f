"""Reads what a Triton request says beside its tensors: parameters and the time that it gives itself.

Triton's HTTP generate endpoints leave everything among the parameters, other protocols take Triton's own out of them.
"""

import json
from typing import Any

from orthrus_backend.triton.trace_context import TRACE_KEYS
from orthrus_backend.validation import shown

CALL = "orthrus_call"  # an id that no other call has, given to a copy of a request that is passed on inside Triton
LONGEST = 10**15  # microseconds, thirty years; a -1 over gRPC comes as 2**64 - 1
_NO_KEYS = ("id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", CALL, *TRACE_KEYS)


def read_timeout(request: Any) -> float | None:
    """Seconds that a request gives itself by Triton's `timeout`, which is in microseconds; None where it sets none.

    Raises:
        ValueError: names the value.
    """
    microseconds = request.timeout() or _all(request).get("timeout", 0)
    if isinstance(microseconds, str) and microseconds.isdecimal() and len(microseconds) <= len(str(LONGEST)):
        microseconds = int(microseconds)
    if type(microseconds) is not int or not 0 <= microseconds <= LONGEST:
        raise ValueError(f"timeout: microseconds are expected, from 0 to {LONGEST}, got {shown(microseconds)}")
    return microseconds / 1e6 if microseconds else None


def read_keys(request: Any) -> dict[str, Any]:
    """A request's parameters, but for those that are meant for Triton."""
    return {
        name: value for name, value in _all(request).items() if name not in _NO_KEYS and not name.startswith("triton_")
    }


def read_call_id(request: Any) -> str:
    """The id that a request was given when it was passed on inside Triton; empty for one from outside."""
    return str(_all(request).get(CALL, ""))


def _all(request: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    return parameters
