"""Turns validation errors into one line that a user can act on. Knows nothing of what was validated."""

from collections.abc import Container

from pydantic import ValidationError

MAX_SHOWN = 80  # characters of an offending value that an error repeats


def shown(value: object) -> str:
    """The value as an error message repeats it: its ``repr``, cut to `MAX_SHOWN` characters."""
    text = repr(value[: MAX_SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def one_line(error: ValidationError, sections: Container[str] = ()) -> str:
    """All faults of a pydantic error in one line, `name: fault (got value)`; names in `sections` are left out."""
    faults = []
    for fault in error.errors(include_url=False):
        name = ".".join(str(part) for part in fault["loc"] if part not in sections)
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            faults.append(f"unknown key {name!r}")
        elif fault["type"] == "value_error":
            faults.append(f"{name}: {message}" if name else message)
        else:
            faults.append(f"{name}: {message} (got {shown(fault['input'])})")
    return "; ".join(faults)
