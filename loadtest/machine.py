"""What a result was measured on, and when: processor, cores, memory, versions, commit. No names of hosts or users."""

import os
import platform
import subprocess
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16")
PACKAGES = (
    "orthrus-backend",
    "torch",
    "transformers",
    "sentence-transformers",
    "nvidia-pytriton",
    "tritonclient",
    "numpy",
)
ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    """Everything, as values for JSON."""
    cpu = _cpu()
    return {
        "date": date.today().isoformat(),
        "cpu": cpu.get("model name", platform.machine()),
        "cpu_flags": [flag for flag in FLAGS if flag in cpu.get("flags", "").split()],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _cpu() -> dict[str, str]:
    """What Linux says of the first core."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of this checkout, with `+` where files differ from it; empty outside of a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
