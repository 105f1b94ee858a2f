"""`orthrus-client chat`: a conversation on the terminal, or one turn for each line of stdin."""

import sys
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from orthrus_client.cli.option_groups import with_option_groups
from orthrus_client.cli.options import Connection, Generating
from orthrus_client.cli.terminal import write
from orthrus_client.options import Message, Sampling

if TYPE_CHECKING:
    import asyncio

    from orthrus_client import AsyncOrthrusClient

FORGET = "/forget"
PROMPT = "> "
WELCOME = f"Ctrl-C stops an answer, {FORGET} begins anew, Ctrl-D ends."


@with_option_groups
def chat(
    generating: Generating,
    connection: Connection,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
) -> None:
    """Talk to the model, which is sent the whole conversation each time.

    Without a terminal, every line of stdin is a turn, and the first failure ends the conversation.
    """
    import asyncio

    interactive = sys.stdin.isatty()
    with asyncio.Runner() as loop:
        client = loop.run(_connected(connection))
        conversation = Conversation(client, connection.timeout, generating.sampling(), system)
        if interactive:
            typer.echo(WELCOME, err=True)
        try:
            for text in _typed() if interactive else _piped():
                if text == FORGET:
                    conversation.forget()
                elif interactive:
                    _careful_turn(loop, conversation, text)
                else:
                    loop.run(conversation.turn(text))
        finally:
            loop.run(client.close())


class Conversation:
    """What was said so far, and how to go on."""

    def __init__(
        self, client: "AsyncOrthrusClient", timeout: float | None, sampling: Sampling, system: str | None
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._sampling = sampling
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages: list[Message] = []

    def forget(self) -> None:
        """Begins anew."""
        self._messages.clear()

    async def turn(self, text: str) -> None:
        """Writes the answer to `text` as it comes. What was answered before a failure or Ctrl-C stays said."""
        question: Message = {"role": "user", "content": text}
        messages = [*self._system, *self._messages, question]
        parts: list[str] = []
        try:
            async with aclosing(self._client.stream_chat(messages, timeout=self._timeout, **self._sampling)) as chunks:
                async for chunk in chunks:
                    parts.append(chunk.text)
                    write(chunk.text)
        finally:
            if answer := "".join(parts).strip():
                self._messages += [question, {"role": "assistant", "content": answer}]
                write("\n")


async def _connected(connection: Connection) -> "AsyncOrthrusClient":
    return connection.async_client()


def _careful_turn(loop: "asyncio.Runner", conversation: Conversation, text: str) -> None:
    from orthrus_client.errors import OrthrusError

    try:
        loop.run(conversation.turn(text))
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    except OrthrusError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)


def _typed() -> Iterator[str]:
    with suppress(ImportError):  # absent on Windows; where it is there, input() can be edited and has a history
        import readline  # noqa: F401  # importing it is all that it takes
    while True:
        try:
            text = input(PROMPT).strip()
        except KeyboardInterrupt:  # a line that is given up
            typer.echo()
            continue
        except EOFError:
            typer.echo()
            return
        if text:
            yield text


def _piped() -> Iterator[str]:
    for line in sys.stdin:
        if text := line.strip():
            yield text
