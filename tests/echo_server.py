"""`orthrus serve` with a model that repeats its prompt in the place of the engine: quick to start, for tests.

The prompt "nothing" gets no answer.

Usage: python -m tests.echo_server FOLDER [seconds that unloading takes]
"""

import json
import shutil
import sys
from pathlib import Path

from orthrus_backend.serve import layout, ports, process, session

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


def main(folder: Path, unload_seconds: float) -> int:
    """Serve until told to stop; the exit statuses are those of `orthrus serve`."""
    shutil.copytree(layout.model_repository(), folder)
    for name in ("embed", "orthrus_embed"):
        shutil.rmtree(folder / name)
    (folder / "orthrus" / "1" / "model.py").write_text(ECHO.replace("{unload_seconds}", str(unload_seconds)))
    layout.model_repository = lambda: folder
    endpoints = ports.choose_endpoints("127.0.0.1", http=0, grpc=0, metrics=0)
    try:
        session.Session({}, 1, endpoints, 1.0, 60.0, "warning").run(
            lambda: print(json.dumps(endpoints.as_dict()), flush=True), lambda: None
        )
    except process.ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
