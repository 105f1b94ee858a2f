"""A Debian root as a place to run an image's processes in: its mounts, and command lines that start inside it.

Made for a mount namespace of its own, with which all mounts end.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.docker_check.image import Settings

DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class Chroot:
    """The folder `path` as the root of processes."""

    path: Path

    def mount_system(self, shared_memory: int) -> None:
        """What a container engine mounts: /proc, /sys, /dev, and `shared_memory` bytes of /dev/shm."""
        self._mount("proc", "proc", "proc")
        self._mount("sysfs", "sysfs", "sys", "ro")
        self._mount("tmpfs", "tmpfs", "dev", "mode=755,size=64k")
        for device in DEVICES:
            (self.path / "dev" / device).touch()
            self.show(Path("/dev", device))
        (self.path / "dev" / "shm").mkdir()
        self._mount("tmpfs", "tmpfs", "dev/shm", f"nosuid,nodev,noexec,mode=1777,size={shared_memory}")

    def mount_tmp(self) -> None:
        """An empty /tmp in memory."""
        self._mount("tmpfs", "tmpfs", "tmp", "mode=1777,size=64m")

    def show(self, path: Path, at: Path | None = None, *, writable: bool = True) -> None:
        """Make the file or folder `path` of this machine visible inside, at its own path or `at`."""
        place = self.path / (at or path).relative_to("/")
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        subprocess.run(["mount", "--bind", str(path), str(place)], check=True)
        if not writable:
            subprocess.run(["mount", "--options", "remount,bind,ro", str(place)], check=True)

    def hide(self, path: Path) -> None:
        """Undo `show`."""
        subprocess.run(["umount", str(self.path / path.relative_to("/"))], check=True)

    def command(self, words: Sequence[str], settings: Settings) -> list[str]:
        """The command line that runs `words` inside as `settings` say; nothing of this environment gets in."""
        environment = {"HOME": self._home(settings.user), "HOSTNAME": os.uname().nodename} | dict(settings.environment)
        assignments = [f"{name}={value}" for name, value in environment.items()]
        chroot = ["chroot", f"--userspec={settings.user}", "--groups=", str(self.path)]
        return [*chroot, "/usr/bin/env", "-i", f"--chdir={settings.folder}", *assignments, *words]

    def _home(self, user: str) -> str:
        """The home folder of a user given as uid:gid."""
        users = [line.split(":") for line in (self.path / "etc" / "passwd").read_text().splitlines()]
        return next((fields[5] for fields in users if fields[2] == user.partition(":")[0]), "/")

    def _mount(self, kind: str, source: str, place: str, options: str = "rw") -> None:
        command = ["mount", "--types", kind, "--options", options, source, str(self.path / place)]
        subprocess.run(command, check=True)


def in_namespaces(words: Sequence[str], *, proc: Path | None = None, network: bool = True) -> list[str]:
    """The command line that runs `words` with mounts and processes of its own, which all end with it.

    Its first process is number 1. `proc` is where it sees its processes. Without `network`, only loopback is there.
    """
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    unshare.append(f"--mount-proc={proc}" if proc else "--mount-proc")
    if network:
        return [*unshare, "--", *words]
    return [*unshare, "--net", "--", "sh", "-ec", 'ip link set lo up; exec "$@"', "sh", *words]


def beside(process: int, words: Sequence[str]) -> list[str]:
    """The command line that runs `words` in the namespaces of `process`."""
    return ["nsenter", f"--target={process}", "--mount", "--net", "--pid", "--", *words]


def environment_of_caller(names: Sequence[str]) -> dict[str, str]:
    """Those of the variables `names` that are set, in either case."""
    both = [*names, *(name.lower() for name in names)]
    return {name: os.environ[name] for name in both if name in os.environ}
