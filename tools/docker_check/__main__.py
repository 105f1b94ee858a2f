"""Runs the steps of docker/Dockerfile.cpu without a container engine, up to a served request.

A debootstrapped Debian is the base image. RUN and COPY are carried out in it one after the other. Then the image's own
command runs as its own user, as compose.yaml has it: with that shared memory, read-only but for its volumes and /tmp;
and without any network but loopback. Its own health check must pass, and SIGTERM must end it.
Needs root and debootstrap. Packages come from where the caller's pip settings say.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import psutil
import typer
import yaml
from docker.utils import parse_bytes

from tools.docker_check.chroot import Chroot, beside, environment_of_caller, in_namespaces
from tools.docker_check.context import copy
from tools.docker_check.image import Copy, HealthCheck, Run, read_image
from tools.docker_check.pip_settings import collect

PROJECT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = PROJECT / "docker" / "Dockerfile.cpu"
COMPOSE = PROJECT / "docker" / "compose.yaml"
SERVICE = "server"
BASE = "debian:bookworm-slim"
SUITE = "bookworm"
# The caller's pip settings say where PyTorch comes from.
BUILD_ARGS = {"TORCH_INDEX": ""}
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")  # which an engine hands to builds, too
TOOLS = ("debootstrap", "unshare", "nsenter", "chroot", "ip", "mount")
POLL_SECONDS = 5.0


def main(
    folder: Annotated[
        Path, typer.Option(help="Where the root is built, in a new folder. Takes about 3 GB while it runs.")
    ] = Path("/var/tmp"),
    base: Annotated[
        Path | None,
        typer.Option(
            help="A debootstrapped Debian 12 to copy; made there if it is missing. Saves minutes the next time."
        ),
    ] = None,
    inside: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Carry out docker/Dockerfile.cpu in a Debian root, serve with it, and ask it for an answer."""
    if inside:
        Check(inside, base).run()
        return
    if os.geteuid() != 0:
        _fail("only root can make a root folder and mount what belongs into it: run it as root")
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        _fail(f"{', '.join(missing)} missing: install Debian's package of that name")
    work = Path(tempfile.mkdtemp(prefix="orthrus-docker-check-", dir=folder))
    try:
        # All mounts and processes belong to namespaces that end with this command, however it ends.
        command = [
            sys.executable,
            "-m",
            "tools.docker_check",
            f"--inside={work}",
            *([f"--base={base.resolve()}"] if base else []),
        ]
        status = subprocess.run(in_namespaces(command), cwd=PROJECT, check=False).returncode
    finally:
        subprocess.run(["rm", "--recursive", "--force", "--one-file-system", str(work)], check=True)
    raise typer.Exit(status)


class Check:
    """One run, inside namespaces of its own. Each step prints what it does."""

    def __init__(self, work: Path, base: Path | None) -> None:
        self._work = work
        self._base = base
        self._image = read_image(DOCKERFILE, BUILD_ARGS)
        self._service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"][SERVICE]
        self._started = time.monotonic()

    def run(self) -> None:
        """All of it."""
        if self._image.base != BASE:
            _fail(f"{DOCKERFILE.name} is based on {self._image.base}; this check knows only {BASE}")
        root = Chroot(self._work / "root")
        self._make_base(root.path)
        self._build(root)
        self._serve(root)
        self._say("passed")

    def _make_base(self, root: Path) -> None:
        if self._base and self._base.is_dir():
            self._say(f"FROM {BASE}: copying {self._base}")
            subprocess.run(["cp", "--archive", str(self._base), str(root)], check=True)
            return
        self._say(f"FROM {BASE}: debootstrap {SUITE}")
        command = ["debootstrap", "--variant=minbase", SUITE, str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if self._base:
            subprocess.run(["cp", "--archive", str(root), f"{self._base}.partial"], check=True)
            Path(f"{self._base}.partial").rename(self._base)

    def _build(self, root: Chroot) -> None:
        """Carry out the steps, with network and the caller's pip settings."""
        (self._work / "pip").mkdir()
        pip = collect(self._work / "pip")
        shown = {Path("/etc/resolv.conf"): None, Path("/etc/hosts"): None, pip.file: Path("/etc/pip.conf")}
        shown |= dict.fromkeys(pip.folders)
        root.mount_system(parse_bytes("64m"))
        for path, at in shown.items():
            root.show(path, at, writable=False)
        for step in self._image.steps:
            match step:
                case Run():
                    self._say(f"RUN {step.command}")
                    self._in_root(root, step)
                case Copy():
                    self._say(f"COPY {' '.join(step.sources)} {step.target}")
                    copy(step, PROJECT, root.path)
        for path, at in reversed(shown.items()):
            root.hide(at or path)

    def _in_root(self, root: Chroot, step: Run) -> None:
        (root.path / step.settings.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        settings = replace(step.settings, environment=environment_of_caller(PROXIES) | dict(step.settings.environment))
        status = subprocess.run(root.command(["/bin/sh", "-c", step.command], settings), check=False).returncode
        if status:
            _fail(f"status {status} of RUN {step.command}")

    def _serve(self, root: Chroot) -> None:
        """Run the image's command and health check, then stop it."""
        image = self._image
        assert image.health is not None
        view = Chroot(self._work / "view")
        view.path.mkdir()
        subprocess.run(["mount", "--bind", str(root.path), str(view.path)], check=True)
        subprocess.run(["mount", "--options", "remount,bind,ro", str(view.path)], check=True)
        view.mount_system(parse_bytes(self._service["shm_size"]))
        view.mount_tmp()
        for volume in image.volumes:
            view.show(root.path / volume.lstrip("/"), Path(volume))
        words = [*image.entrypoint, *image.command]
        self._say(f"{json.dumps(words)} as user {image.settings.user}")
        command = in_namespaces(view.command(words, image.settings), proc=view.path / "proc", network=False)
        process = subprocess.Popen(command)
        try:
            first = self._healthy(process, view, image.health)
            self._unprivileged(first)
            self._stop(process, first)
        finally:
            process.kill()
            process.wait()

    def _healthy(self, process: subprocess.Popen[bytes], view: Chroot, health: HealthCheck) -> psutil.Process:
        """The first process of the container, once the health check has passed."""
        self._say(f"HEALTHCHECK {json.dumps(health.command)}")
        deadline = time.monotonic() + health.start_period
        answer = "nothing was asked"
        while True:
            if time.monotonic() > deadline:
                _fail(f"not healthy after {health.start_period:g} s: {answer}")
            if process.poll() is not None:
                _fail(f"the command ended by itself with status {process.returncode}")
            for first in psutil.Process(process.pid).children():  # one, once its namespaces are made
                well, answer = self._ask(first, view, health)
                if well:
                    print(answer, flush=True)
                    return first
            time.sleep(POLL_SECONDS)

    def _ask(self, first: psutil.Process, view: Chroot, health: HealthCheck) -> tuple[bool, str]:
        """Whether the container of the process `first` is well, and what its health check wrote."""
        command = beside(first.pid, view.command(health.command, self._image.settings))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=health.timeout, check=False)
        except subprocess.TimeoutExpired:
            return False, f"no answer of the health check within {health.timeout:g} s"
        return done.returncode == 0, (done.stdout + done.stderr).strip()

    def _unprivileged(self, first: psutil.Process) -> None:
        wanted = tuple(map(int, self._image.settings.user.split(":")))
        processes = [first, *first.children(recursive=True)]
        found = {(process.name(), process.uids().real, process.gids().real) for process in processes}
        self._say(f"{len(processes)} processes: {', '.join(sorted(name for name, *_ in found))}")
        if others := [entry for entry in found if entry[1:] != wanted]:
            _fail(f"not run by user {self._image.settings.user}: {others}")

    def _stop(self, process: subprocess.Popen[bytes], first: psutil.Process) -> None:
        grace = float(self._service["stop_grace_period"].removesuffix("s"))
        self._say(f"SIGTERM, and {grace:g} s to end")
        first.terminate()
        try:
            status = process.wait(grace)
        except subprocess.TimeoutExpired:
            _fail(f"still there after {grace:g} s")
        if status:
            _fail(f"it ended with status {status}")

    def _say(self, what: str) -> None:
        seconds = int(time.monotonic() - self._started)
        print(f"==> {seconds // 60}:{seconds % 60:02} {' '.join(what.split())}", flush=True)


def _fail(message: str) -> NoReturn:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
