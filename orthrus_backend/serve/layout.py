"""Lays out what tritonserver reads: the backend directory, and a copy of the model repository with parameters set.

Does not know what the parameters mean.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from orthrus_backend.serve.triton_binary import TritonBinary

ENGINE_MODEL = "orthrus"
PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders that a tritonserver is started with."""

    backends: Path
    models: Path


def model_repository() -> Path:
    """The model repository as shipped: beside the package in a checkout, inside it when installed."""
    for folder in (PACKAGE / "model_repository", PACKAGE.parent / "model_repository"):
        if (folder / ENGINE_MODEL / "config.pbtxt").is_file():
            return folder
    raise RuntimeError(f"the model repository is missing: neither in {PACKAGE} nor beside it")


def lay_out(folder: Path, triton: TritonBinary, parameters: Mapping[str, str], instances: int) -> Layout:
    """Fill the empty `folder`; `parameters` are those of the model `orthrus`, of which there will be `instances`."""
    layout = Layout(backends=folder / "backends", models=folder / "models")
    python_backend = layout.backends / "python"
    python_backend.mkdir(parents=True)
    for file in triton.backend_files:
        (python_backend / file.name).symlink_to(file)
    shutil.copytree(model_repository(), layout.models, ignore=shutil.ignore_patterns("__pycache__"))
    fill_in(layout.models / ENGINE_MODEL / "config.pbtxt", parameters, instances)
    return layout


def fill_in(config_file: Path, parameters: Mapping[str, str], instances: int) -> None:
    """Set parameters and instance count in a config.pbtxt.

    Raises:
        ValueError: the file has no such parameter.
    """
    config = text_format.Parse(config_file.read_text(encoding="utf-8"), ModelConfig())
    for name, value in parameters.items():
        if name not in config.parameters:
            known = ", ".join(sorted(config.parameters))
            raise ValueError(f"{config_file.parent.name} has no parameter {name!r}; it has {known}")
        config.parameters[name].string_value = value
    config.instance_group[0].count = instances
    config_file.write_text(text_format.MessageToString(config), encoding="utf-8")
