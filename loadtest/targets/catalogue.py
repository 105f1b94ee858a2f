"""The targets by name, and how a name with options is read: `orthrus:policy=fcfs,token_budget=256`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.records import Kind
from loadtest.targets.target import Settings, Target


def _orthrus(settings: Settings, options: Mapping[str, str]) -> Target:
    from loadtest.targets.orthrus import Orthrus

    return Orthrus(settings, options)


def _engine(settings: Settings, options: Mapping[str, str]) -> Target:
    from loadtest.targets.orthrus_engine import OrthrusEngine  # loads PyTorch into this process

    return OrthrusEngine(settings, options)


def _transformers(settings: Settings, options: Mapping[str, str]) -> Target:
    from loadtest.targets.transformers_pair import TransformersPair

    return TransformersPair(settings, options)


def _vllm(arrangement: str) -> Callable[[Settings, Mapping[str, str]], Target]:
    def make(settings: Settings, options: Mapping[str, str]) -> Target:
        from loadtest.targets import vllm

        parts = {
            "pinned": vllm.pinned,
            "shared": vllm.shared,
            "embed-only": lambda: vllm.alone(Kind.EMBED),
            "generate-only": lambda: vllm.alone(Kind.GENERATE),
        }
        return vllm.Vllm(settings, options, parts[arrangement]())

    return make


TARGETS: dict[str, Callable[[Settings, Mapping[str, str]], Target]] = {
    "orthrus": _orthrus,
    "orthrus-engine": _engine,
    "vllm-pinned": _vllm("pinned"),
    "vllm-shared": _vllm("shared"),
    "vllm-embed-only": _vllm("embed-only"),
    "vllm-generate-only": _vllm("generate-only"),
    "transformers-pair": _transformers,
}


@dataclass(frozen=True, slots=True)
class TargetName:
    """A target as asked for: `label` is what it is called in results."""

    label: str
    name: str
    options: Mapping[str, str]

    def make(self, settings: Settings) -> Target:
        """The target, not started. Raises `ValueError` or `TargetError` where its options or this machine cannot be."""
        return TARGETS[self.name](settings, self.options)


def read_target(label: str) -> TargetName:
    """Raises `ValueError` if there is no such target, or an option is not of the form name=value."""
    name, _, listed = label.partition(":")
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}; known are {', '.join(TARGETS)}")
    options = {}
    for entry in filter(None, listed.split(",")):
        key, equals, value = entry.partition("=")
        if not key or not equals:
            raise ValueError(f"target {label!r}: {entry!r} is not of the form name=value")
        options[key] = value
    return TargetName(label, name, options)
