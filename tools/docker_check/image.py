"""What a Dockerfile says, as values: the steps that build its last stage, and how the image is run.

Knows the instructions that this project uses and refuses all others. Runs nothing.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser
from dockerfile_parse.util import WordSplitter, extract_key_values

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process of the image finds: who it is, where, and its environment."""

    user: str = "0:0"
    folder: str = "/"
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": PATH})


@dataclass(frozen=True, slots=True)
class Run:
    """A command of the shell."""

    command: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Copy:
    """Files of the build context, or of the stage `stage`, and where they go."""

    sources: tuple[str, ...]
    target: str
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The command that tells whether a container is well, and its times in seconds."""

    command: tuple[str, ...]
    timeout: float
    start_period: float


@dataclass(slots=True)
class Image:
    """The last stage of a Dockerfile."""

    base: str
    steps: list[Run | Copy] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: HealthCheck | None = None
    volumes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


def read_image(dockerfile: Path, build_args: Mapping[str, str] | None = None) -> Image:
    """The image that `dockerfile` describes.

    Raises:
        ValueError: an instruction or a form of it that this project does not use.
    """
    with dockerfile.open("rb") as file:
        instructions = DockerfileParser(fileobj=file).structure  # type: ignore[arg-type]  # bytes, says its documentation
    given = dict(build_args or {})
    global_args: dict[str, str] = {}
    image: Image | None = None
    for instruction in instructions:
        name, value = instruction["instruction"], instruction["value"]
        if name == "ARG" and image is None:
            _declare(value, global_args, given)
        elif name == "FROM":
            args: dict[str, str] = {}
            image = Image(base=_filled_in(value.split()[0], global_args))
        elif name != "COMMENT":
            assert image is not None
            _apply(image, name, value, args, global_args | given)
    if image is None:
        raise ValueError(f"{dockerfile} has no FROM")
    return image


def _apply(image: Image, name: str, value: str, args: dict[str, str], given: Mapping[str, str]) -> None:
    """Take one instruction of a stage into `image`; `args` are the build arguments declared so far."""
    now = image.settings
    known = args | dict(now.environment)
    match name:
        case "ARG":
            _declare(value, args, given)
        case "ENV":
            pairs = dict(extract_key_values(env_replace=True, args=args, envs=known, instruction_value=value))
            image.settings = Settings(now.user, now.folder, {**now.environment, **pairs})
        case "USER":
            image.settings = Settings(_filled_in(value, known), now.folder, now.environment)
        case "WORKDIR":
            image.settings = Settings(now.user, str(Path(now.folder, _filled_in(value, known))), now.environment)
        case "RUN":
            if value.startswith(("[", "--", "<<")):
                raise ValueError(f"RUN {value}: only commands of the shell are understood")
            image.steps.append(Run(value, Settings(now.user, now.folder, known)))
        case "COPY":
            image.steps.append(_copy(_filled_in(value, known), now.folder))
        case "HEALTHCHECK":
            image.health = _health(value)
        case "ENTRYPOINT":
            image.entrypoint = _words(name, value)
        case "CMD":
            image.command = _words(name, value)
        case "VOLUME":
            image.volumes += tuple(value.split())
        case "EXPOSE":
            image.ports += tuple(int(port) for port in value.split())
        case _:
            raise ValueError(f"{name} {value}: this instruction is not understood")


def _declare(value: str, args: dict[str, str], given: Mapping[str, str]) -> None:
    name, _, default = value.partition("=")
    args[name] = given.get(name, _filled_in(default, args))


def _filled_in(text: str, values: Mapping[str, str]) -> str:
    return str(WordSplitter(text, args={}, envs=dict(values)).dequote())


def _words(name: str, value: str) -> tuple[str, ...]:
    """A command in JSON, the form in which signals reach the process itself and not a shell around it."""
    if not value.startswith("["):
        raise ValueError(f"{name} {value}: write it as a JSON list")
    return tuple(json.loads(value))


def _copy(value: str, folder: str) -> Copy:
    words = shlex.split(value)
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
    *sources, target = (word for word in words if not word.startswith("--"))
    if options.keys() - {"from"}:
        raise ValueError(f"COPY {value}: only --from is understood")
    slash = "/" if target.endswith("/") else ""  # which makes it a folder
    return Copy(tuple(sources), str(Path(folder, target)) + slash, options.get("from"))


def _health(value: str) -> HealthCheck:
    options, command = re.fullmatch(r"((?:--\S+\s+)*)CMD\s+(.*)", value).groups()  # type: ignore[union-attr]  # fails loudly
    times = {name: _seconds(time) for name, time in re.findall(r"--(\S+)=(\S+)", options)}
    return HealthCheck(_words("HEALTHCHECK", command), times["timeout"], times["start-period"])


def _seconds(time: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", time).groups()  # type: ignore[union-attr]  # fails loudly
    return int(number) * SECONDS[unit]
