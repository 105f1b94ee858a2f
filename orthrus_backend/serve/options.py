"""Turns options of the command line into parameters of the model `orthrus`, checking what only this machine can tell.

Names and ranges of parameters are checked in `orthrus_backend.config`. A fault is a ValueError naming the option.
"""

import json
from collections.abc import Container, Sequence
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, but not exported for mypy

from orthrus_backend.config import NO_ADAPTER, PARAMETERS
from orthrus_backend.default_model import EMBEDDING_ADAPTER

GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # Linux, WSL


def has_gpu() -> bool:
    """Whether the system has a driver for NVIDIA GPUs; whether PyTorch can use one is found out when it loads."""
    return any(Path(device).exists() for device in GPU_DEVICES)


def check_device(device: str) -> None:
    """Refuse a GPU where there can be none."""
    if device.startswith("cuda") and not has_gpu():
        raise ValueError(f"--device {device}: there is no NVIDIA GPU here ({' or '.join(GPU_DEVICES)})")


def check_traces(traces: bool) -> None:
    """Refuse traces where what makes them is not installed; the models run in this environment too."""
    if traces and find_spec("opentelemetry.sdk") is None:
        raise ValueError('--traces: OpenTelemetry is not installed: pip install "orthrus-backend[otel]"')


def check_length(model: str, max_model_len: int) -> None:
    """Refuse more tokens than `config.json` of the folder `model` allows. Where it is silent, the engine knows."""
    file = Path(model) / "config.json"
    if file.is_file():
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            limit = config.get("text_config", config).get("max_position_embeddings")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"--model {model!r}: its config.json is not what a model has: {error}") from error
        if limit and max_model_len > limit:
            raise ValueError(f"--max-model-len {max_model_len}: the model's own limit is {limit}")


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
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"{option} {value!r}: this file is no model; name a folder with a config.json or a .gguf file")
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


def embedding_adapter_parameter(value: str, model: str, embedding_model: str) -> str:
    """The parameter `embedding_adapter`: an absolute path, or `none`. Empty: the default model's own, if it embeds."""
    if value == NO_ADAPTER or (not value and (model or embedding_model)):
        return NO_ADAPTER
    if embedding_model:
        raise ValueError(f"--embedding-adapter {value!r}: --embedding-model {embedding_model!r} embeds: give one")
    path = Path(value).expanduser().resolve() if value else EMBEDDING_ADAPTER
    if not (path / "adapter_config.json").is_file():
        raise ValueError(f"--embedding-adapter {value!r}: {path} has no adapter_config.json")
    return str(path)


def adapters_file_parameter(value: str) -> str:
    """The parameter `adapters_file` as the server takes it: an absolute path; empty stays empty."""
    path = Path(value).expanduser()
    if value and not path.is_file():
        raise ValueError(f"--adapters-file {value!r}: no such file")
    return str(path.resolve()) if value else ""


def settings_parameters(pairs: Sequence[str], own_options: Container[str]) -> dict[str, str]:
    """Parameters from options of the form NAME=VALUE; those with `own_options` are set there."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--set {pair!r}: write NAME=VALUE")
        if name in own_options:
            raise ValueError(f"--set {pair!r}: {name} has an option of its own, see --help")
        if name not in PARAMETERS:
            known = ", ".join(parameter for parameter in PARAMETERS if parameter not in own_options)
            raise ValueError(f"--set {pair!r}: unknown parameter {name!r}; known are {known}")
        settings[name] = value
    return settings
