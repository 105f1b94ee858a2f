"""Turns options of the command line into parameters of the model `orthrus`, checking what only this machine can tell.

Names and ranges of parameters are checked in `orthrus_backend.config`. A fault is a ValueError naming the option.
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]


def model_parameter(option: str, value: str) -> str:
    """`value` as the server takes it, which runs elsewhere: an absolute path, or a hub id; empty stays empty."""
    path = Path(value).expanduser()
    if not value:
        return ""
    if not path.exists() and path.suffix != ".gguf":
        try:
            validate_repo_id(value)
        except HFValidationError:
            raise ValueError(f"{option} {value!r}: no such folder, and no hub id (name or owner/name) either") from None
        return value
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"{option} {value!r}: no such file")
    elif not (path / "config.json").is_file():
        raise ValueError(f"{option} {value!r}: the folder has no config.json")
    return str(path.resolve())


def adapters_parameter(pairs: Sequence[str]) -> str:
    """The parameter `adapters` from options of the form NAME=PATH."""
    adapters = []
    for pair in pairs:
        name, _, value = pair.partition("=")
        path = Path(value).expanduser()
        if not name or not value:
            raise ValueError(f"--adapter {pair!r}: write NAME=PATH")
        if not (path / "adapter_config.json").is_file():
            raise ValueError(f"--adapter {pair!r}: {path} has no adapter_config.json")
        if "," in name or "," in str(path.resolve()):
            raise ValueError(f"--adapter {pair!r}: a comma separates adapters in Triton's configuration; rename it")
        adapters.append(f"{name}={path.resolve()}")
    return ",".join(adapters)


def settings_parameters(pairs: Sequence[str]) -> dict[str, str]:
    """Parameters from options of the form NAME=VALUE."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--set {pair!r}: write NAME=VALUE")
        settings[name] = value
    return settings
