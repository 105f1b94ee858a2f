"""Compiles `kernels.cpp` for this machine's processor, once, and loads it.

Knows where the result is kept and what it depends on; not what is inside.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from filelock import FileLock

from orthrus_backend.config import cache_dir

_SOURCE = Path(__file__).with_name("kernels.cpp")
_INCLUDED = sorted(_SOURCE.parent.glob("*.h"))
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
_LINKING = ("-fopenmp", "-fPIC", "-shared")
_COMPILERS = ("g++", "c++")


class NotCompiledError(RuntimeError):
    """There is no compiler, it failed, or there is no place for its result; the message says which."""


@cache
def load_kernels() -> ctypes.CDLL:
    """The compiled kernels; the first call on a machine compiles them, which takes some seconds.

    Import torch first: its OpenMP threads are then shared, instead of a second pool that fights with them.

    Raises:
        NotCompiledError: they cannot be had here.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NotCompiledError(f"no C++ compiler was found (looked for {', '.join(_COMPILERS)})")
    try:
        library = cache_dir() / "kernels" / f"{_fingerprint(compiler)}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(library.with_suffix(".lock")):
            if not library.exists():
                _compile(compiler, library)
        return ctypes.CDLL(str(library))
    except OSError as error:  # a cache that cannot be written, or not be run from
        raise NotCompiledError(str(error)) from error


def _fingerprint(compiler: str) -> str:
    """What the machine code depends on: source, flags, compiler and processor."""
    version = _run([compiler, "--version"]).stdout
    sources = [file.read_text(encoding="utf-8") for file in (_SOURCE, *_INCLUDED)]
    parts = (*sources, *_FLAGS, *_LINKING, version, platform.machine(), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """Features of the first core: a cache folder may be shared by machines that differ."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, library: Path) -> None:
    handle, name = tempfile.mkstemp(dir=library.parent, suffix=".tmp")
    os.close(handle)
    command = [compiler, *_FLAGS, *_LINKING, "-o", name, str(_SOURCE)]
    done = _run(command)
    if done.returncode:
        Path(name).unlink()
        raise NotCompiledError(f"{' '.join(command)} failed: {done.stderr.strip()[:2000]}")
    Path(name).replace(library)  # whoever looks sees all of it or nothing


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Compilers quote in UTF-8, which the interpreter inside Triton does not expect."""
    return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
