"""Whether a server answers: one text is embedded and one token generated, within a time limit.

Triton's own readiness is not enough: 2.51 says that it is ready when a model's process is dead.
Exit status: 0 when both were answered, 1 when not.
"""

import argparse
import sys
import time

from orthrus_client import OrthrusClient, OrthrusError

TEXT = "The capital of France is"


def main() -> int:
    """Ask, say what came back, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--url", default="127.0.0.1:8001", help="host:port of the gRPC service (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=15.0, help="seconds for both together (default: %(default)s)")
    options = parser.parse_args()
    deadline = time.monotonic() + options.timeout
    try:
        with OrthrusClient(options.url) as client:
            vectors = client.embed(TEXT, timeout=deadline - time.monotonic())
            answer = client.generate(TEXT, max_tokens=1, temperature=0, timeout=deadline - time.monotonic())
    except OrthrusError as error:
        print(f"unhealthy: {options.url}: {type(error).__name__}: {error}")
        return 1
    print(f"healthy: embedded into {vectors.shape[1]} dimensions, generated {answer.text!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
