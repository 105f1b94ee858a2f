"""The model repository: its configurations agree with each other and with the engine, and Triton loads them."""

from collections.abc import Mapping
from typing import Any

import pytest
import tritonclient.http as http_client
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput

from orthrus_backend.config import (
    CacheSettings,
    EngineSettings,
    ModelSettings,
    ObservabilitySettings,
    SchedulerSettings,
)
from orthrus_backend.serve.layout import model_repository
from tests.serving import RunningServer

MODELS = ("orthrus", "orthrus_embed", "embed", "generate")
ENTRY_POINTS = {"embed": "orthrus_embed", "generate": "orthrus"}


def config(name: str) -> ModelConfig:
    """The configuration as shipped."""
    text = (model_repository() / name / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, ModelConfig())


def inputs(name: str) -> Mapping[str, ModelInput]:
    """The inputs of a model by name."""
    return {tensor.name: tensor for tensor in config(name).input}


def test_the_parameters_are_exactly_the_engines_settings() -> None:
    groups = (ModelSettings, SchedulerSettings, CacheSettings, ObservabilitySettings)
    known = {name for group in groups for name in group.model_fields} | {"drain_timeout"}
    parameters = config("orthrus").parameters
    assert set(parameters) == known
    assert EngineSettings.from_parameters({n: p.string_value for n, p in parameters.items()}) == EngineSettings()


@pytest.mark.parametrize(("entry_point", "behind"), ENTRY_POINTS.items())
def test_an_entry_point_passes_on_all_it_declares(entry_point: str, behind: str) -> None:
    (step,) = config(entry_point).ensemble_scheduling.step
    assert step.model_name == behind
    assert dict(step.input_map) == {name: name for name in inputs(entry_point)}
    assert dict(step.output_map) == {tensor.name: tensor.name for tensor in config(entry_point).output}


@pytest.mark.parametrize("name", ["orthrus_embed", "embed", "generate"])
def test_tensors_are_those_of_the_engine(name: str) -> None:
    engine = inputs("orthrus")
    outputs = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config("orthrus").output}
    assert all(tensor.data_type == engine[tensor.name].data_type for tensor in inputs(name).values())
    assert all(outputs[tensor.name] == (tensor.data_type, list(tensor.dims)) for tensor in config(name).output)


def test_all_inputs_of_the_engine_are_optional() -> None:
    assert all(tensor.optional for tensor in inputs("orthrus").values())


@pytest.mark.parametrize("name", MODELS)
def test_every_folder_has_what_its_kind_needs(name: str) -> None:
    assert config(name).name == name
    version = model_repository() / name / "1"
    assert (version / "model.py").is_file() == (config(name).backend == "python")
    assert version.is_dir()  # git keeps no empty folder, and Triton loads no model without a version


@pytest.mark.parametrize("name", MODELS)
def test_a_server_loads_it(server: RunningServer, name: str) -> None:
    with http_client.InferenceServerClient(server.http) as client:
        assert client.is_model_ready(name)


@pytest.mark.parametrize(("name", "decoupled"), [("orthrus", True), ("orthrus_embed", False)])
def test_only_the_engine_is_decoupled(server: RunningServer, name: str, decoupled: bool) -> None:
    with http_client.InferenceServerClient(server.http) as client:
        loaded: Mapping[str, Any] = client.get_model_config(name)
    assert loaded.get("model_transaction_policy", {}).get("decoupled", False) is decoupled
