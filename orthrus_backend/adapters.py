"""LoRA adapters on contiguous rows of a packed batch: `y[a:b] += scale * (x[a:b] A') B'`, the base weights untouched.

Responsible for loading PEFT's files, for finding the layers that they belong to, and for applying them. Nothing that an
adapter brings is dropped in silence. Knows nothing of requests: rows are given with their adapter.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast
from weakref import WeakSet

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from orthrus_backend.adapter_config import AdapterConfig
from orthrus_backend.request import AdapterHandle
from orthrus_backend.validation import shown

WEIGHTS_FILE = "adapter_model.safetensors"
_FACTOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.weight")

_LINEAR = (nn.Linear, Conv1D)
_Sides = dict[str, Tensor]  # "A" [r, in] and "B" [out, r] of one layer


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """What an adapter adds to one linear layer: `x A' B'`."""

    a: Tensor  # [r, in]
    b: Tensor  # [out, r], the scale folded in


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """A loaded adapter: factors by the name of their layer in the served model."""

    name: str
    layers: Mapping[str, Factors]
    serial: int = field(default_factory=count().__next__)


def load_adapter(name: str, path: Path, model: nn.Module, dtype: torch.dtype, device: torch.device | str) -> Adapter:
    """Load a folder that PEFT saved, from the bare base model or from one with a head.

    Args:
        name: what requests call it.
        path: the folder with `adapter_config.json` and `adapter_model.safetensors`.
        model: the Hugging Face model that is served; only its layers' names and shapes are looked at.
        dtype: of the factors; the model's own.
        device: of the factors.

    Raises:
        ValueError: a field of the configuration, a tensor or a file that cannot be honoured; the message names it.
    """
    try:
        layers = _match_layers(AdapterConfig.read(path), model, _read_factors(path))
    except ValueError as error:
        raise ValueError(f"adapter {shown(name)}: {error}") from error
    return Adapter(name, {layer: Factors(f.a.to(device, dtype), f.b.to(device, dtype)) for layer, f in layers.items()})


class AdapterRows:
    """Which adapter each row of the running step has; who computes a linear layer asks it to add theirs.

    Belongs to the thread that runs the model.
    """

    def __init__(self) -> None:
        self.segments: Sequence[tuple[Adapter, int, int]] = ()  # (adapter, first row, row after the last)

    @contextmanager
    def active(self, segments: Sequence[tuple[AdapterHandle, int, int]]) -> Iterator[None]:
        """Apply adapters to rows of the model calls inside the block; rows that no segment names are the base's.

        Args:
            segments: (adapter, first row, row after the last) over the packed rows, without overlap.
        """
        assert not self.segments, "a step inside a step"
        assert all(isinstance(adapter, Adapter) for adapter, _, _ in segments)
        self.segments = [(cast(Adapter, adapter), start, stop) for adapter, start, stop in segments]
        try:
            yield
        finally:
            self.segments = ()

    def __bool__(self) -> bool:
        return bool(self.segments)

    def add(self, layer: str, x: Tensor, y: Tensor) -> None:
        """Add to `y`, in place, what the rows' adapters make of `x` in this layer. `x`: [T, in], `y`: [T, out]."""
        for adapter, start, stop in self.segments:
            if (factors := adapter.layers.get(layer)) is not None:
                assert stop <= len(x) == len(y), f"{layer} saw {len(x)} of the rows {start} to {stop}"
                y[start:stop].addmm_(x[start:stop] @ factors.a.T, factors.b.T)


class AdapterHooks(AdapterRows):
    """The same for a model that is left as it is, by forward hooks on the layers that any adapter targets.

    An adapter is hooked in when it is first used, and its hooks go when nobody holds it any more: until then, requests
    go on with the version that they began with.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._seen: WeakSet[Adapter] = WeakSet()
        self._hooks: dict[str, RemovableHandle] = {}
        self._known = 0  # adapters that the hooks were made for

    @contextmanager
    def active(self, segments: Sequence[tuple[AdapterHandle, int, int]]) -> Iterator[None]:
        if len(self._seen) < self._known:
            self._remove_hooks()
        for adapter, _, _ in segments:
            assert isinstance(adapter, Adapter)
            if adapter not in self._seen:
                self._hook_in(adapter)
        with super().active(segments):
            yield

    def _hook_in(self, adapter: Adapter) -> None:
        self._seen.add(adapter)
        self._known = len(self._seen)
        for layer in adapter.layers.keys() - self._hooks.keys():
            module = self._model.get_submodule(layer)
            self._hooks[layer] = module.register_forward_hook(partial(self._add_to_output, layer))

    def _remove_hooks(self) -> None:
        """Remove those that no adapter needs which is still held."""
        self._known = len(self._seen)
        needed = {layer for adapter in self._seen for layer in adapter.layers}
        for layer in self._hooks.keys() - needed:
            self._hooks.pop(layer).remove()

    def _add_to_output(self, layer: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.add(layer, inputs[0].flatten(0, -2), output.view(-1, output.shape[-1]))  # of [T, in] or [1, T, in]


def _read_factors(path: Path) -> dict[str, _Sides]:
    """Tensors by module, as the file names it."""
    file = path / WEIGHTS_FILE
    if not file.is_file():
        pickled = next(path.glob("adapter_model*.bin"), None)
        hint = f"; {pickled.name} is a pickle and is not loaded, save it as safetensors" if pickled else ""
        raise ValueError(f"{file} does not exist{hint}")
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {file}: {error}") from error
    factors: dict[str, _Sides] = {}
    for key, tensor in tensors.items():
        match = _FACTOR.fullmatch(key)
        if match is None:
            raise ValueError(f"tensor {shown(key)} is not a LoRA factor of a linear layer")
        if not tensor.isfinite().all():
            raise ValueError(f"tensor {shown(key)} has values that are not finite")
        factors.setdefault(match["module"], {})[match["side"]] = tensor
    if not factors:
        raise ValueError(f"{file} has no tensors")
    return factors


def _match_layers(config: AdapterConfig, model: nn.Module, tensors: Mapping[str, _Sides]) -> dict[str, Factors]:
    """Factors by served layer; raises where the tensors, the configuration and the model disagree."""
    served = _served_names(model, tensors)
    if strangers := sorted(tensors.keys() - served.keys()):
        raise ValueError(f"tensors of {shown(strangers[0])} find no module in {type(model).__name__}")
    modules = dict(model.named_modules())
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for saved, name in served.items():
        module = modules[name]
        plain = isinstance(module, _LINEAR) and module is not head
        wanted = config.selects(saved) and (plain or not config.all_linear)
        if saved in tensors and not wanted:
            raise ValueError(f"module {shown(saved)} has tensors, but target_modules does not select it")
        if wanted and (not plain or "experts" in name.split(".")):
            raise ValueError(
                f"target_modules selects {shown(saved)}: only linear layers that see every row are adapted"
            )
        if wanted and saved not in tensors:
            raise ValueError(f"module {shown(saved)} is selected by target_modules, but has no tensors")
    layers = {}
    for saved, sides in tensors.items():
        width_in, width_out = _widths(modules[served[saved]])
        rank = config.rank(saved)
        for side, shape in (("A", (rank, width_in)), ("B", (width_out, rank))):
            if side not in sides:
                raise ValueError(f"tensor {saved}.lora_{side}.weight is missing")
            if tuple(sides[side].shape) != shape:
                raise ValueError(
                    f"tensor {saved}.lora_{side}.weight has shape {tuple(sides[side].shape)}, expected {shape}"
                )
        layers[served[saved]] = Factors(sides["A"], sides["B"].float() * config.scale(saved))
    return layers


def _served_names(model: nn.Module, saved: Collection[str]) -> dict[str, str]:
    """Names of the served model's modules, by the names that the model had which the adapter was saved from.

    One of the two may be the bare base model, and the other the same with a head around it: whichever reading finds
    more of the adapter's modules is right.
    """
    names = [name for name, _ in model.named_modules() if name]
    around = f"{getattr(model, 'base_model_prefix', '')}."
    readings = (
        {name: name for name in names},
        {name.removeprefix(around): name for name in names if name.startswith(around)},
        {around + name: name for name in names},
    )
    return max(readings, key=lambda reading: len(reading.keys() & set(saved)))


def _widths(module: nn.Module) -> tuple[int, int]:
    """Input and output features."""
    if isinstance(module, Conv1D):
        return module.weight.shape[0], module.weight.shape[1]
    assert isinstance(module, nn.Linear)
    return module.in_features, module.out_features
