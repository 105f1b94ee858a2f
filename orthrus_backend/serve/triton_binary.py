"""Finds the tritonserver to run and what its Python backend needs. Starts nothing and writes nothing.

In NVIDIA's container that is the server of the container. Elsewhere it is the one inside the `nvidia-pytriton` wheel,
whose Python code is not used.
"""

import ctypes
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.metadata import version as package_version
from pathlib import Path

CONTAINER_SERVER = Path("/opt/tritonserver/bin/tritonserver")
WHEEL = "nvidia-pytriton"


@dataclass(frozen=True, slots=True)
class TritonBinary:
    """A tritonserver and its Python backend, on disk."""

    server: Path  # the executable
    backend_files: tuple[Path, ...]  # what belongs into <backend directory>/python
    library_folders: tuple[Path, ...]  # what the dynamic linker has to know beside the system's own folders

    def environment(self, parent: Mapping[str, str]) -> dict[str, str]:
        """`parent` with what the server and its stub processes need added.

        A stub is its own Python interpreter, which takes its packages from the first `python3` on PATH. So the one that
        runs this code goes first: the stub then sees the same virtual environment, editable installs included.
        """
        libraries = [*map(str, self.library_folders), *filter(None, [parent.get("LD_LIBRARY_PATH")])]
        path = [str(Path(sys.executable).parent), *filter(None, [parent.get("PATH")])]
        return {**parent, "PATH": os.pathsep.join(path), "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def find_triton() -> TritonBinary:
    """The tritonserver on PATH or of NVIDIA's container where there is one, else that of the wheel.

    Raises:
        RuntimeError: there is none, or this Python interpreter cannot be embedded into its Python backend.
    """
    on_path = shutil.which("tritonserver")
    for server in [Path(on_path).resolve()] if on_path else [CONTAINER_SERVER]:
        backend = server.parent.parent / "backends" / "python"
        if server.is_file() and (backend / "libtriton_python.so").is_file():
            return TritonBinary(server, tuple(sorted(backend.iterdir())), ())
    return _from_wheel()


def _from_wheel() -> TritonBinary:
    try:
        wheel = distribution(WHEEL)
    except PackageNotFoundError:
        raise RuntimeError(
            f"no tritonserver found: not on PATH, not at {CONTAINER_SERVER}, and the package {WHEEL} is not installed."
            f" Install it with: {sys.executable} -m pip install {WHEEL} (Python 3.11 or 3.12)"
        ) from None
    if int(package_version("numpy").partition(".")[0]) >= 2:
        raise RuntimeError(
            f"the tritonserver in {WHEEL} {wheel.version} needs numpy < 2 and here is {package_version('numpy')}:"
            " it would read strings wrongly. Use Python 3.11 or 3.12 with numpy 1.26"
        )
    root = Path(str(wheel.locate_file("pytriton/tritonserver")))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(folder.name for folder in (root / "python_backend_stubs").glob("3.*")))
        raise RuntimeError(f"{WHEEL} {wheel.version} has no Python backend for Python {version}; it has {known}")
    backend = root / "backends" / "python"
    return TritonBinary(
        server=root / "bin" / "tritonserver",
        backend_files=(backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub),
        library_folders=(Path(str(wheel.locate_file("nvidia_pytriton.libs"))), *_python_library_folders()),
    )


def _python_library_folders() -> tuple[Path, ...]:
    """Where this interpreter's shared library lies: the stub links against it."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    candidates = [Path(sys.base_prefix) / "lib", Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")]
    for folder in candidates:
        if (folder / name).is_file():
            return (folder,)
    try:
        ctypes.CDLL(name)  # the system's linker knows where
    except OSError:
        raise RuntimeError(
            f"{name} was not found (looked in {', '.join(map(str, candidates))}), but Triton's Python backend needs it:"
            " install it (on Debian and Ubuntu the package libpython3.x), or use a Python built with --enable-shared"
        ) from None
    return ()
