"""The build context: what of the project's files a build gets to see, and how COPY takes them from there."""

import shutil
from pathlib import Path

from docker.utils.build import exclude_paths

from tools.docker_check.image import Copy


def context(project: Path) -> frozenset[Path]:
    """The files of the folder `project`, relative to it, that .dockerignore leaves."""
    lines = (project / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return frozenset(path for path in map(Path, exclude_paths(str(project), patterns)) if (project / path).is_file())


def copied(step: Copy, files: frozenset[Path]) -> dict[Path, Path]:
    """Each of `files` that `step` takes, and its absolute path in the image.

    Raises:
        ValueError: a source is not among them.
    """
    target = Path(step.target)
    placed: dict[Path, Path] = {}
    for source in map(Path, step.sources):
        below = {file: target / file.relative_to(source) for file in files if source in file.parents}
        if source in files:
            below[source] = target / source.name if step.target.endswith("/") else target
        if not below:
            raise ValueError(f"COPY {source}: no such file, or .dockerignore leaves it out")
        placed |= below
    return placed


def copy(step: Copy, project: Path, root: Path) -> None:
    """Carry out `step` in the folder `root`."""
    for source, target in copied(step, context(project)).items():
        place = root / target.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project / source, place)
