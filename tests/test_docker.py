"""docker/: what can be told without a container engine. `make docker-check` carries out a Dockerfile's steps."""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from orthrus_backend.cli import app
from orthrus_backend.config import EngineSettings
from orthrus_backend.serve.session import STOP_SECONDS
from tests.serving import RunningServer
from tools.docker_check.context import context, copied
from tools.docker_check.image import Copy, Image, Run, read_image
from tools.docker_check.pip_settings import collect

PROJECT = Path(__file__).parent.parent
DOCKER = PROJECT / "docker"
PROGRAMS = Path(sys.executable).parent
DOCKERFILES = sorted(DOCKER.glob("Dockerfile*"))
SERVERS = ("Dockerfile", "Dockerfile.cpu")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SAFE_TRITON = (26, 7)  # earlier releases have known vulnerabilities in the Python backend
SERVE = typer.main.get_group(app).commands["serve"]


def image(name: str) -> Image:
    return read_image(DOCKER / name)


def run(*command: str) -> None:
    done = subprocess.run([PROGRAMS / command[0], *command[1:]], capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
class TestEveryImage:
    def test_hadolint_has_nothing_to_say(self, dockerfile: Path) -> None:
        run("hadolint", "--config", str(PROJECT / ".hadolint.yaml"), str(dockerfile))

    def test_what_is_copied_is_in_the_build_context(self, dockerfile: Path) -> None:
        files = context(PROJECT)
        steps = [step for step in read_image(dockerfile).steps if isinstance(step, Copy) and not step.stage]
        assert steps
        assert all(copied(step, files) for step in steps)

    def test_versions_are_those_of_the_lock(self, dockerfile: Path) -> None:
        commands = [step.command for step in read_image(dockerfile).steps if isinstance(step, Run)]
        installs = [command for command in commands if "pip install" in command]
        assert installs
        assert all("--constraint requirements.lock" in command for command in installs)

    def test_it_runs_as_nobody_in_particular(self, dockerfile: Path) -> None:
        user = read_image(dockerfile).settings.user  # a number, so that Kubernetes can tell that it is not root
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)

    def test_it_has_a_health_check_and_passes_signals_on(self, dockerfile: Path) -> None:
        image = read_image(dockerfile)
        assert image.health is not None
        assert [*image.entrypoint, *image.command][:2] == ["tini", "--"]


class TestServers:
    def test_triton_is_new_enough(self) -> None:
        name, _, tag = image("Dockerfile").base.partition(":")
        assert name == "nvcr.io/nvidia/tritonserver"
        version = re.fullmatch(r"(\d+)\.(\d+)-py3", tag)
        assert version
        assert tuple(map(int, version.groups())) >= SAFE_TRITON

    def test_an_older_triton_is_not_left_beside_it(self) -> None:
        commands = [step.command for step in image("Dockerfile").steps if isinstance(step, Run)]
        assert any(command.endswith("pip uninstall --yes nvidia-pytriton") for command in commands)

    @pytest.mark.parametrize("name", SERVERS)
    def test_the_command_is_one_that_orthrus_takes(self, name: str) -> None:
        command = image(name).command
        program, serve, *options = command[command.index("orthrus") :]
        assert (program, serve) == ("orthrus", "serve")
        parameters = SERVE.make_context("serve", options).params
        assert parameters["host"] == "0.0.0.0"
        ports = (parameters["http_port"], parameters["grpc_port"], parameters["metrics_port"])
        assert ports == image(name).ports

    @pytest.mark.parametrize("name", SERVERS)
    def test_models_are_kept_in_the_volume(self, name: str) -> None:
        environment = image(name).settings.environment
        (volume,) = image(name).volumes
        assert Path(volume) in Path(environment["ORTHRUS_CACHE"]).parents
        assert Path(volume) in Path(environment["HF_HOME"]).parents

    @pytest.mark.parametrize("name", SERVERS)
    def test_the_health_check_is_in_the_image_and_ends_in_time(self, name: str) -> None:
        built = image(name)
        assert built.health is not None
        python, script, timeout = built.health.command
        files = context(PROJECT)
        places = {
            t for step in built.steps if isinstance(step, Copy) and not step.stage for t in copied(step, files).values()
        }
        assert python == "python"
        assert Path(script) in places
        assert float(timeout.removeprefix("--timeout=")) < built.health.timeout

    @pytest.mark.parametrize("file", [*DOCKERFILES, PROJECT / "SECURITY.md"], ids=lambda path: path.name)
    def test_commands_in_the_text_are_ones_that_orthrus_takes(self, file: Path) -> None:
        for command in re.findall(r"`orthrus serve(?: ([^`]*))?`", file.read_text(encoding="utf-8")):
            SERVE.make_context("serve", shlex.split(command))


def test_the_gateway_takes_its_commands() -> None:
    usage = subprocess.run(
        [PROGRAMS / "orthrus-client", "gateway", "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    commands = (image("Dockerfile.gateway").command, SERVICES["gateway"]["command"])
    for command in commands:
        assert list(command[:2]) == ["orthrus-client", "gateway"]
        assert all(option.partition("=")[0] in usage.stdout for option in command[2:]), usage.stdout + usage.stderr


class TestCompose:
    def test_it_follows_the_specification(self) -> None:
        run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER / "compose.yaml"))

    def test_everything_is_published_on_loopback_only(self) -> None:
        published = [port for service in SERVICES.values() for port in service.get("ports", [])]
        assert len(published) == 9
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)

    @pytest.mark.parametrize("service", ["server", "server-gpu", "gateway"])
    def test_ports_are_those_of_the_image(self, service: str) -> None:
        dockerfile = PROJECT / SERVICES[service]["build"]["dockerfile"]
        published = tuple(int(port.rpartition(":")[2]) for port in SERVICES[service]["ports"])
        assert published == read_image(dockerfile).ports

    def test_who_asks_the_server_asks_on_its_ports(self) -> None:
        _, grpc, metrics = image("Dockerfile.cpu").ports
        for command in (SERVICES["gateway"]["command"], image("Dockerfile.gateway").command):
            assert {f"--url=server:{grpc}", f"--metrics-url=server:{metrics}"} <= set(command)
        prometheus = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
        (job,) = prometheus["scrape_configs"]
        assert job["static_configs"] == [{"targets": [f"server:{metrics}"]}]
        assert all("server" in SERVICES[name]["networks"]["default"]["aliases"] for name in ("server", "server-gpu"))

    def test_grafana_asks_prometheus_and_finds_the_dashboards(self) -> None:
        provisioning = DOCKER / "grafana" / "provisioning"
        (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
        (provider,) = yaml.safe_load((provisioning / "dashboards" / "orthrus.yml").read_text())["providers"]
        (prometheus,) = SERVICES["prometheus"]["ports"]
        assert source["url"] == f"http://prometheus:{prometheus.rpartition(':')[2]}"
        mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
        assert provider["options"]["path"] in mounted

    @pytest.mark.parametrize("name", ["server", "server-gpu"])
    def test_a_server_gets_memory_to_share_and_time_to_end(self, name: str) -> None:
        assert SERVICES[name]["shm_size"] == "1gb"
        assert (
            float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
            > EngineSettings().drain.drain_timeout + STOP_SECONDS
        )

    @pytest.mark.parametrize("name", ["server", "server-gpu", "gateway"])
    def test_what_others_reach_can_change_nothing_outside(self, name: str) -> None:
        service = SERVICES[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]

    def test_what_is_mounted_exists(self) -> None:
        mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
        folders = [source for source in mounted if source.startswith(".")]
        assert folders
        assert all((DOCKER / source).exists() for source in folders)
        assert set(mounted) - set(folders) == set(COMPOSE["volumes"])

    def test_one_server_starts_by_default(self) -> None:
        (profile,) = re.findall(r"^COMPOSE_PROFILES=(\w+)$", (DOCKER / ".env").read_text(), re.MULTILINE)
        started = [name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])]
        assert [name for name in started if name.startswith("server")] == ["server"]


class TestHealthCheck:
    COMMAND = (sys.executable, str(DOCKER / "healthcheck.py"))

    def test_a_server_that_answers_both_kinds_is_healthy(self, server: RunningServer) -> None:
        done = subprocess.run([*self.COMMAND, f"--url={server.grpc}", "--timeout=60"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("healthy: embedded into 576 dimensions, generated '")

    def test_nobody_there_is_unhealthy(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            url = f"127.0.0.1:{closed.getsockname()[1]}"
        done = subprocess.run([*self.COMMAND, f"--url={url}", "--timeout=5"], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stdout.startswith(f"unhealthy: {url}: Unavailable: ")

    def test_a_silent_server_is_unhealthy_in_time(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"127.0.0.1:{silent.getsockname()[1]}"
            started = time.monotonic()
            done = subprocess.run([*self.COMMAND, f"--url={url}", "--timeout=1"], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stdout.startswith(f"unhealthy: {url}: ")
        assert time.monotonic() - started < 15


class TestReading:
    def read(self, folder: Path, text: str, **build_args: str) -> Image:
        (folder / "Dockerfile").write_text(text)
        return read_image(folder / "Dockerfile", build_args)

    def test_steps_have_the_settings_of_their_place(self, tmp_path: Path) -> None:
        text = (
            "ARG TAG=1\nFROM base:${TAG}\nARG A=b\nENV PATH=/x:$PATH C=$A\nWORKDIR /w\n"
            "RUN one \\\n # a comment between\n two\nUSER 5:6\nWORKDIR sub\nRUN three\nCOPY a b c/\n"
        )
        image = self.read(tmp_path, text, A="given")
        first, second, copy = image.steps
        assert isinstance(first, Run)
        assert isinstance(second, Run)
        assert image.base == "base:1"
        assert first.command.split() == ["one", "two"]
        assert (first.settings.user, first.settings.folder) == ("0:0", "/w")
        assert first.settings.environment["PATH"].startswith("/x:/usr/local/sbin:")
        assert (first.settings.environment["A"], first.settings.environment["C"]) == ("given", "given")
        assert (second.settings.user, second.settings.folder) == ("5:6", "/w/sub")
        assert copy == Copy(("a", "b"), "/w/sub/c/")
        assert "A" not in image.settings.environment  # a build argument ends with the build

    @pytest.mark.parametrize(
        "line", ["ADD a b", 'SHELL ["bash"]', "RUN <<EOF", "CMD orthrus serve", "COPY --chown=1 a b"]
    )
    def test_what_is_not_understood_is_refused(self, tmp_path: Path, line: str) -> None:
        with pytest.raises(ValueError, match=re.escape(line.split()[0])):
            self.read(tmp_path, f"FROM base\n{line}\n")

    def test_a_source_that_is_left_out_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / ".dockerignore").write_text("*\n!kept\n**/*.log\n")
        (tmp_path / "kept" / "deep").mkdir(parents=True)
        for name in ("kept/a", "kept/deep/b", "kept/deep/c.log", "other"):
            (tmp_path / name).touch()
        files = context(tmp_path)
        assert copied(Copy(("kept",), "/in"), files) == {
            Path("kept/a"): Path("/in/a"),
            Path("kept/deep/b"): Path("/in/deep/b"),
        }
        assert copied(Copy(("kept/a",), "/in/"), files) == {Path("kept/a"): Path("/in/a")}
        assert copied(Copy(("kept/a",), "/in"), files) == {Path("kept/a"): Path("/in")}
        with pytest.raises(ValueError, match="COPY other"):
            copied(Copy(("other",), "/in"), files)


def test_pip_settings_of_the_caller_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index := tmp_path / "pypi" / "simple").mkdir(parents=True)
    (wheels := tmp_path / "wheels").mkdir()
    (certificate := tmp_path / "some.crt").write_text("trust me")
    (folder := tmp_path / "settings").mkdir()
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"https://example.org/simple {index.as_uri()}")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CERT", str(certificate))
    settings = collect(folder)
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        env={"PIP_CONFIG_FILE": str(settings.file), "PATH": ""},
    ).stdout
    assert f"https://example.org/simple\\n{index.as_uri()}" in listed
    assert {folder, index.parent, wheels} <= set(settings.folders)
    (copy,) = folder.glob("*some.crt")
    assert f".cert='{copy}'" in listed
    assert copy.read_text() == "trust me"
