"""Users of both kinds for locust, over Triton's gRPC and HTTP; run from the root of the project:

    locust -f loadtest/locustfile.py --headless --users 16 --spawn-rate 16 --run-time 30s

Without `--headless` locust's page is at http://localhost:8089. Each request is an event of its own; for a stream so are
the time to its first token ("TTFT") and each gap after it ("inter-token"), so that locust shows percentiles of all.
Locust waits for every answer before a user sends again; for what it cannot do, see `python -m loadtest`.
"""

import logging
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import grpc.experimental.gevent
from locust import User, constant, events, task
from orthrus_client import OrthrusClient
from orthrus_client.options import Protocol

from loadtest.scenario import Mix
from loadtest.workload import Embedding, Generation, Item, Vocabulary, items
from orthrus_backend.default_model import ensure_default_model

grpc.experimental.gevent.init_gevent()  # or one blocking call would stop all users
logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request hides locust's own
_seeds = count()  # every user has texts of its own


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # locust has no types for it
def _add_options(parser: ArgumentParser) -> None:
    """Options of locust's command line, which its page shows, too. The page itself is for this machine."""
    parser.set_defaults(web_host="127.0.0.1")  # locust's own default lets others start load
    parser.add_argument("--grpc", default="localhost:8001", help="host:port of Triton's gRPC service")
    parser.add_argument("--http", default="localhost:8000", help="host:port of Triton's HTTP service")
    parser.add_argument("--model", default="", help="folder of the served model, for its tokenizer")
    parser.add_argument("--embed-share", type=float, default=0.5, help="share of embeddings of all requests")
    parser.add_argument("--input-tokens", type=int, default=128, help="tokens of a text or prompt")
    parser.add_argument("--output-tokens", type=int, default=128, help="tokens of a generation")


class _OrthrusUser(User):
    """Sends its next request when it has the answer to the last one."""

    abstract = True
    wait_time = constant(0)
    protocol: ClassVar[Protocol]
    _vocabulary: ClassVar[Vocabulary | None] = None

    def on_start(self) -> None:
        """Connect, and begin a sequence of requests."""
        options: Any = self.environment.parsed_options
        self._client = OrthrusClient(getattr(options, self.protocol), protocol=self.protocol, retries=0)
        self._items = self._requests(options)

    def on_stop(self) -> None:
        """Disconnect."""
        self._client.close()

    @task
    def ask(self) -> None:
        """One embedding or generation."""
        item = next(self._items)
        name = "embed" if isinstance(item, Embedding) else "generate"
        started, tokens, fault = time.perf_counter(), 0, None
        try:
            match item:
                case Embedding():
                    tokens = int(self._client.embed_with_usage(item.text).num_input_tokens[0])
                case Generation():
                    tokens = self._generate(item)
        except Exception as error:  # locust counts it, and goes on
            fault = error
        self._tell(self.protocol, name, time.perf_counter() - started, tokens, fault)

    def _generate(self, item: Generation) -> int:
        before, tokens = time.perf_counter(), 0
        for chunk in self._client.stream(item.prompt, max_tokens=item.output_tokens, temperature=0, ignore_eos=True):
            now = time.perf_counter()
            if chunk.num_output_tokens:
                what = "inter-token" if tokens else "TTFT"
                self._tell(what, f"generate ({self.protocol})", now - before, chunk.num_output_tokens, None)
                before = now
            tokens += chunk.num_output_tokens
        return tokens

    def _tell(self, what: str, name: str, seconds: float, tokens: int, fault: Exception | None) -> None:
        """One line of locust's table; what it calls the length of a response are tokens here."""
        self.environment.events.request.fire(
            request_type=what,
            name=name,
            response_time=seconds * 1e3,
            response_length=tokens,
            exception=fault,
            context={},
        )

    @classmethod
    def _requests(cls, options: Any) -> Iterator[Item]:
        if _OrthrusUser._vocabulary is None:
            _OrthrusUser._vocabulary = Vocabulary.of_model(Path(options.model or ensure_default_model()))
        work = Mix(
            kind="mix",
            embed_share=options.embed_share,
            embed_tokens=options.input_tokens,
            prompt_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
        )
        return items(work, _OrthrusUser._vocabulary, [next(_seeds)])


class GrpcUser(_OrthrusUser):
    """Over gRPC: unary for embeddings, a stream for each generation."""

    protocol = "grpc"


class HttpUser(_OrthrusUser):
    """Over HTTP: binary infer for embeddings, server-sent events for generations."""

    protocol = "http"
