"""`orthrus serve` with small models in the place of the engine: quick to start, for tests.

The prompt "nothing" gets no answer.

Usage: python -m tests.echo_server FOLDER [seconds that unloading takes]
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orthrus_backend.serve import layout, ports, process, session
from orthrus_backend.serve.layout import Layout

ECHO = """
import time
import triton_python_backend_utils as pb_utils

waiting = []


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input")
            if text.as_numpy()[0] == b"nothing":
                waiting.append(request.get_response_sender())
                continue
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.as_numpy())])
            request.get_response_sender().send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        time.sleep({unload_seconds})
"""


def serve(folder: Path, models: Mapping[str, str], without: Sequence[str] = (), options: Sequence[str] = ()) -> int:
    """Serve until told to stop; the exit statuses are those of `orthrus serve`.

    Args:
        folder: is made, for the model repository.
        models: code in the place of a model's own.
        without: models that are left out.
        options: more options of tritonserver.
    """
    shutil.copytree(layout.model_repository(), folder)
    for name in without:
        shutil.rmtree(folder / name)
    for name, code in models.items():
        (folder / name / "1" / "model.py").write_text(code)
    layout.model_repository = lambda: folder
    endpoints = ports.choose_endpoints("127.0.0.1", http=0, grpc=0, metrics=0)

    class Session(session.Session):
        def _arguments(self, layout: Layout, gpu: bool) -> list[str]:
            return [*super()._arguments(layout, gpu), *options]

    try:
        Session({}, 1, endpoints, 1.0, 60.0, "warning").run(
            lambda: print(json.dumps(endpoints.as_dict()), flush=True), lambda: None
        )
    except process.ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main(folder: Path, unload_seconds: float) -> int:
    """Serve a model that repeats its prompt."""
    code = ECHO.replace("{unload_seconds}", str(unload_seconds))
    return serve(folder, {"orthrus": code}, without=("embed", "orthrus_embed"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
