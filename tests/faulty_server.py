"""`orthrus serve` with an engine that can be made to fail: a step that holds a request with the id "fail" raises.

Usage: python -m tests.faulty_server FOLDER [options of orthrus serve]
"""

import shutil
import sys
from pathlib import Path

from orthrus_backend.cli import app
from orthrus_backend.serve import layout

FAULTY = """
from orthrus_backend.runner import Runner
from orthrus_backend.triton.backend import TritonPythonModel

run = Runner.run


def run_or_fail(self, plan):
    if any(s.request.id == "fail" for s in plan.slices):
        raise RuntimeError("this step was made to fail")
    return run(self, plan)


Runner.run = run_or_fail
"""


def main(folder: Path, options: list[str]) -> None:
    """Serve from a copy of the model repository in `folder`."""
    shutil.copytree(layout.model_repository(), folder)
    (folder / "orthrus" / "1" / "model.py").write_text(FAULTY)
    layout.model_repository = lambda: folder
    app(["serve", *options])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
