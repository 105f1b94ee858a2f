"""A tritonserver whose models turn requests away as they are told, behind TLS and a restriction to who knows a secret.

Usage: python -m tests.client.busy_server FOLDER CERTIFICATES

A text that begins with `busy N KEY` finds the server unavailable N times for each KEY; `broken N KEY` gets half an
answer first, and `wrong N KEY` is refused. CERTIFICATES holds server.pem, server.key and roots.pem. gRPC is encrypted
and asks for a certificate; HTTP is plain, as it is in Triton.
"""

import sys
from pathlib import Path

from tests.echo_server import serve

SECRET = ("x-secret", "open sesame")
GRPC_PREFIX = "triton-grpc-protocol-"  # Triton's, before the name of the header

# One text out: how often this key was asked for.
GENERATE = """
from collections import Counter
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def answer(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text], dtype=np.object_))])


def failure(kind):
    error = pb_utils.TritonError("unavailable: too much to do", pb_utils.TritonError.UNAVAILABLE)
    if kind == "wrong":
        error = pb_utils.TritonError("there is something wrong", pb_utils.TritonError.INVALID_ARG)
    return pb_utils.InferenceResponse(error=error)


class TritonPythonModel:
    def initialize(self, args):
        self.asked = Counter()

    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            kind, times, key = text.split()[:3]
            self.asked[key] += 1
            sender, refused = request.get_response_sender(), self.asked[key] <= int(times)
            if refused and kind == "broken":
                sender.send(answer("half"))
            sender.send(failure(kind) if refused else answer(f"asked {self.asked[key]} times"), flags=FINAL)
"""

# A row for each text: its number of characters, the texts in its request, the requests that ran with it.
EMBED = """
import threading
import time
from collections import Counter
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.asked = Counter()
        self.lock = threading.Lock()
        self.running = 0

    def execute(self, requests):
        for request in requests:
            texts = [text.decode() for text in pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()]
            threading.Thread(target=self.answer, args=(request.get_response_sender(), texts)).start()

    def answer(self, sender, texts):
        with self.lock:
            self.running += 1
        time.sleep(0.1)
        with self.lock:
            running, self.running = self.running, self.running - 1
            refused = []
            for text in texts:
                if text.startswith("busy"):
                    _, times, key = text.split()[:3]
                    self.asked[key] += 1
                    refused.append(self.asked[key] <= int(times))
                if text.startswith("wrong"):
                    error = pb_utils.TritonError("there is something wrong", pb_utils.TritonError.INVALID_ARG)
                    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                    return
        if any(refused):
            error = pb_utils.TritonError("unavailable: too much to do", pb_utils.TritonError.UNAVAILABLE)
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
            return
        rows = np.array([[len(text), len(texts), running] for text in texts], dtype=np.float32)
        counts = np.array([len(text.split()) for text in texts], dtype=np.uint32)
        outputs = [pb_utils.Tensor("embedding", rows), pb_utils.Tensor("num_input_tokens", counts)]
        sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL)
"""


def main(folder: Path, certificates: Path) -> int:
    """Serve until told to stop."""
    name, value = SECRET
    options = [
        "--grpc-use-ssl=1",
        "--grpc-use-ssl-mutual=1",
        f"--grpc-server-cert={certificates / 'server.pem'}",
        f"--grpc-server-key={certificates / 'server.key'}",
        f"--grpc-root-cert={certificates / 'roots.pem'}",
        f"--grpc-restricted-protocol=inference:{name}={value}",
        f"--http-restricted-api=inference:{name}={value}",
    ]
    return serve(folder, {"orthrus": GENERATE, "orthrus_embed": EMBED}, options=options)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
