"""The options that several commands share: how to reach the server, how to embed, how to generate."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, cast

from typer import BadParameter, Option

from orthrus_client.batching import BATCH_SIZE, IN_FLIGHT
from orthrus_client.options import RETRIES, EmbedOptions, Pooling, Protocol, Sampling, Truncate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orthrus_client import AsyncOrthrusClient, OrthrusClient
    from orthrus_client.security import Tls

Result = TypeVar("Result")

SERVER, EMBEDDING, SAMPLING = "The server", "How to embed", "How to generate"
ADDRESS = {"grpc": "127.0.0.1:8001", "http": "127.0.0.1:8000"}
CERTIFICATE = "PEM"


class _Connecting(TypedDict):
    protocol: Protocol
    tls: "Tls | None"
    headers: "Mapping[str, str]"
    retries: int


@dataclass(frozen=True, slots=True)
class Connection:
    """Which server, and how to reach it."""

    url: Annotated[
        str,
        Option(
            metavar="HOST:PORT",
            envvar="ORTHRUS_URL",
            help="Address of Triton's service for the protocol.",
            show_default=" or ".join(f"{address} ({protocol})" for protocol, address in ADDRESS.items()),
            rich_help_panel=SERVER,
        ),
    ] = ""
    protocol: Annotated[Protocol, Option(help="What the server speaks there.", rich_help_panel=SERVER)] = "grpc"
    timeout: Annotated[
        float | None,
        Option(help="Seconds that one call may take.", show_default="no limit", rich_help_panel=SERVER),
    ] = None
    retries: Annotated[
        int,
        Option(help="How often to try again when the server is unavailable; 0: never.", rich_help_panel=SERVER),
    ] = RETRIES
    header: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="A header, or metadata over gRPC, to send with every request. May be repeated.",
            rich_help_panel=SERVER,
        ),
    ] = None
    tls: Annotated[bool, Option("--tls", help="Encrypt the connection.", rich_help_panel=SERVER)] = False
    root_certificates: Annotated[
        Path | None,
        Option(
            metavar=CERTIFICATE,
            help="Whom to trust; switches TLS on.",
            show_default="well-known authorities",
            rich_help_panel=SERVER,
        ),
    ] = None
    client_certificate: Annotated[
        Path | None,
        Option(metavar=CERTIFICATE, help="To show to the server; switches TLS on.", rich_help_panel=SERVER),
    ] = None
    client_key: Annotated[
        Path | None, Option(metavar=CERTIFICATE, help="The key of that certificate.", rich_help_panel=SERVER)
    ] = None

    def run(self, work: "Callable[[AsyncOrthrusClient], Awaitable[Result]]") -> "Result":
        """What `work` makes of a client; Ctrl-C cancels it. Raises what `async_client` raises, too."""
        import asyncio

        async def main() -> Result:
            async with self.async_client() as client:
                return await work(client)

        return asyncio.run(main())

    def async_client(self) -> "AsyncOrthrusClient":
        """A client for the running event loop. Raises `ValueError` for options that do not fit together.

        Commands use it also where nothing runs at once: a KeyboardInterrupt in the middle of gRPC's blocking code can
        leave a lock of the channel taken for good. asyncio makes it a cancellation.
        """
        from orthrus_client import AsyncOrthrusClient

        return AsyncOrthrusClient(self._address(), **self._arguments())

    def client(self) -> "OrthrusClient":
        """The same for threads."""
        from orthrus_client import OrthrusClient

        return OrthrusClient(self._address(), **self._arguments())

    def _address(self) -> str:
        return self.url or ADDRESS[self.protocol]

    def _arguments(self) -> _Connecting:
        from orthrus_client.security import Tls

        headers = {}
        for header in self.header or ():
            name, equals, value = header.partition("=")
            if not equals:
                raise BadParameter(f"{header!r} is not of the form NAME=VALUE", param_hint="--header")
            headers[name] = value
        files = self.root_certificates, self.client_certificate, self.client_key
        tls = Tls(*files) if self.tls or any(files) else None
        return {"protocol": self.protocol, "tls": tls, "headers": headers, "retries": self.retries}


@dataclass(frozen=True, slots=True)
class Prompting:
    """What is put before a text to embed."""

    prompt_name: Annotated[
        str | None, Option(help="One of the prompts that the model's files define.", rich_help_panel=EMBEDDING)
    ] = None
    instruction: Annotated[str | None, Option(help="A text to put before every text.", rich_help_panel=EMBEDDING)] = (
        None
    )

    def options(self) -> EmbedOptions:
        """Those that were given."""
        return cast(EmbedOptions, _given(self))


@dataclass(frozen=True, slots=True)
class Embedding(Prompting):
    """How texts become vectors; what is left out is the model's own default."""

    pooling: Annotated[
        Pooling | None,
        Option(help="How one vector is made of all tokens.", show_default="the model's own", rich_help_panel=EMBEDDING),
    ] = None
    dimensions: Annotated[
        int | None, Option(help="Keep the first so many.", show_default="all", rich_help_panel=EMBEDDING)
    ] = None
    normalize: Annotated[
        bool | None,
        Option(
            "--normalize/--no-normalize",
            help="Scale vectors to length one.",
            show_default="the model's own",
            rich_help_panel=EMBEDDING,
        ),
    ] = None
    adapter: Annotated[
        str | None,
        Option(
            help='A LoRA adapter of the server, by name; "" for none at all.',
            show_default="the server's own for embeddings",
            rich_help_panel=EMBEDDING,
        ),
    ] = None
    truncate: Annotated[
        Truncate | None,
        Option(
            help="What to do with a text that is too long: refuse it, or cut it there.",
            show_default="error",
            rich_help_panel=EMBEDDING,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Requests:
    """How a long list of texts is sent."""

    batch_size: Annotated[int, Option(help="Texts in one request, at most.", rich_help_panel=EMBEDDING)] = BATCH_SIZE
    in_flight: Annotated[int, Option(help="Requests at once, at most.", rich_help_panel=EMBEDDING)] = IN_FLIGHT
    progress: Annotated[
        bool | None,
        Option(
            "--progress/--no-progress",
            help="Show how far it has come.",
            show_default="on a terminal",
            rich_help_panel=EMBEDDING,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """For `AsyncOrthrusClient.embed`."""
        import sys

        shown = sys.stderr.isatty() if self.progress is None else self.progress
        return {"batch_size": self.batch_size, "in_flight": self.in_flight, "progress": shown}


@dataclass(frozen=True, slots=True)
class Generating:
    """How a text is drawn; what is left out is the server's default."""

    max_tokens: Annotated[int, Option(help="Tokens to write, at most.", rich_help_panel=SAMPLING)] = 256
    min_tokens: Annotated[int | None, Option(help="Tokens to write, at least.", rich_help_panel=SAMPLING)] = None
    temperature: Annotated[float | None, Option(help="0: always the likeliest token.", rich_help_panel=SAMPLING)] = None
    top_p: Annotated[
        float | None, Option(help="Draw among the likeliest tokens of this share.", rich_help_panel=SAMPLING)
    ] = None
    top_k: Annotated[int | None, Option(help="Draw among so many tokens.", rich_help_panel=SAMPLING)] = None
    min_p: Annotated[
        float | None, Option(help="Leave out tokens below this part of the likeliest.", rich_help_panel=SAMPLING)
    ] = None
    seed: Annotated[int | None, Option(help="The same seed, the same text.", rich_help_panel=SAMPLING)] = None
    stop: Annotated[
        list[str] | None, Option(help="A text that ends the answer. May be repeated.", rich_help_panel=SAMPLING)
    ] = None
    repetition_penalty: Annotated[
        float | None, Option(help="Over 1: repeat less of prompt and answer.", rich_help_panel=SAMPLING)
    ] = None
    presence_penalty: Annotated[
        float | None, Option(help="Over 0: repeat less of the answer.", rich_help_panel=SAMPLING)
    ] = None
    frequency_penalty: Annotated[
        float | None, Option(help="Over 0: repeat less what came often.", rich_help_panel=SAMPLING)
    ] = None
    ignore_eos: Annotated[
        bool | None, Option("--ignore-eos", help="Write on after the model's end.", rich_help_panel=SAMPLING)
    ] = None
    adapter: Annotated[str | None, Option(help="A LoRA adapter of the server, by name.", rich_help_panel=SAMPLING)] = (
        None
    )

    def sampling(self) -> Sampling:
        """Those that were given."""
        return cast(Sampling, _given(self))


def _given(group: Any) -> dict[str, Any]:
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return {name: value for name, value in values.items() if value is not None and value != []}
