"""uvloop compared with asyncio's own loop: adding items, and writing batches to a socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sluicegate import Batch, Batcher, Limits

from ..feeds import SIZE, add, check, ours, recipe, submit
from ..harness import NS_PER_ITEM, Case, CaseUnavailableError, placed
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..feeds import Run
    from ..harness import Contender, Turn

ASYNCIO, UVLOOP = "asyncio", "uvloop"
SOCKET_SIZE = 10
"""Small batches, so that the loop has work to do."""
ACK = b"\x06"


class SocketSink:
    """A sink that sends a batch as one line over a connection and waits for the response, like the
    client of a server.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.count = 0

    async def write(self, batch: Batch[int]) -> None:
        self._writer.write(b",".join(b"%d" % item for item in batch) + b"\n")
        await self._reader.readexactly(len(ACK))
        self.count += len(batch)


class Server:
    """A server that responds to every line."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(ACK)
        writer.close()
        self.left.set()


def _over_a_socket(items: Sequence[int], run: Run) -> Turn:
    async def turn() -> Took:
        answering = Server()
        server = await asyncio.start_server(answering.answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        sink = SocketSink(reader, writer)
        watch = Stopwatch()
        async with Batcher(sink, limits=Limits(max_items=SOCKET_SIZE)) as batcher:
            await add(batcher, items)
        took = watch.read()
        writer.close()
        await answering.left.wait()
        server.close()
        check(sink.count, items)
        return took

    return lambda: run(turn())


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    try:
        import uvloop
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    items = range(count)
    few = range(count // 5)
    loops: tuple[tuple[str, Run], ...] = ((ASYNCIO, asyncio.run), (UVLOOP, uvloop.run))
    yield (
        *(
            placed(name, f"add, batches of {SIZE}", ours(add, items, run=run), ours=True)
            for name, run in loops
        ),
        *(
            placed(
                name,
                f"add, batches of {SOCKET_SIZE}",
                ours(add, items, size=SOCKET_SIZE, run=run),
                ours=True,
            )
            for name, run in loops
        ),
        *(
            placed(name, "submit, then gather", ours(submit, items, run=run), ours=True)
            for name, run in loops
        ),
        *(
            placed(
                name,
                f"add, batches of {SOCKET_SIZE} over a socket",
                _over_a_socket(few, run),
                ours=True,
                items=len(few),
            )
            for name, run in loops
        ),
        *(
            placed(
                name,
                "asyncio.Queue + wait_for",
                recipe(few, eager=False, run=run),
                ours=True,
                items=len(few),
            )
            for name, run in loops
        ),
    )


CASE = Case(
    name="loops",
    title="uvloop and asyncio",
    prepare=prepare,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(ASYNCIO,),
    along="",
)
