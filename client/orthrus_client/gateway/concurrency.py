"""Many calls for one request, and an end to them when whoever asked has gone. Cancelling a call tells the server."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from fastapi import Request

from orthrus_client.gateway.errors import ApiError

T = TypeVar("T")
_QUEUED = 64  # items that may wait for a slow reader before the streams have to


async def all_of(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, in order; the first that fails ends the others and is what is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def merged(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """The items of all streams as they come, each with its stream's position; the first failure ends all of them."""
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(_QUEUED)

    async def forward(position: int, stream: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await queue.put((position, item))
        except Exception as error:
            await queue.put(error)
        await queue.put(None)

    tasks = [asyncio.create_task(forward(position, stream)) for position, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        await cancelled(tasks)


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes its connection."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client has closed the connection")
        return task.result()
    finally:
        await cancelled((task, gone))


async def cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs and wait for its end, whatever that is.

    A task's end takes a while, since it tells the server; whoever waits may be cancelled too, but must not cut it off.
    """
    for task in tasks:
        task.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asked for, so that asyncio does not complain that nobody did


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
