"""White box: one end of a spool in a process of its own: `spool_child.py FOLDER write|send|fork COUNT SEAL_EVERY`.

`write` stores COUNT numbers and prints them, then waits until its input ends. `send` prints what it
sends, until that is COUNT items. `fork` stores an item, and is killed after the exit of a child.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import warnings
from typing import Any

from sluicegate import Batcher, ConfigError, RowBatch, flow, send
from sluicegate.consumer import Commits
from sluicegate.errors import ForkedError
from sluicegate.flow.spooling.segment import Segment


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def write(folder: str, count: int, seal_every: float) -> None:
    """Store items one after the other."""
    async with flow.spool(folder, seal_every=seal_every).sink() as sink:
        say("open")
        for number in range(count):
            assert await send(sink, RowBatch([number])) == {}
            say(number)
        await asyncio.to_thread(sys.stdin.read)


async def send_all(folder: str, count: int, _: float) -> None:
    """Send items by a pipe."""
    left = count

    async def deliver(batch: Any) -> None:
        nonlocal left
        for item in batch:
            say(item)
        left -= len(batch)
        if not left:
            pipe.stop()

    source = flow.spool(folder).source()
    pipe = flow.pipe(
        source, Batcher(deliver), lambda message: message.value, commits=Commits(every=0.01)
    )
    await pipe.run()


def fork(folder: str, _: int, seal_every: float) -> None:
    """The child uses the spool of its parent, opens its own, and drops what it has."""
    warnings.simplefilter("ignore", DeprecationWarning)  # threads are running
    parent = asyncio.Runner()
    sink = flow.spool(folder, seal_every=seal_every).sink()
    parent.run(sink.__aenter__())
    assert parent.run(send(sink, RowBatch(["of the parent"]))) == {}
    child = os.fork()
    if not child:
        try:
            sink.write(RowBatch(["of the child"])).send(None)  # the loop is the parent's
        except ForkedError:
            say("forked")
        try:
            asyncio.run(write(folder, 0, seal_every))
        except ConfigError as error:
            say(f"process {os.getppid()} writes to it" in str(error))
        segments = [each for each in gc.get_objects() if isinstance(each, Segment)]
        while segments:
            vars(segments.pop()).clear()  # as at the end of the interpreter
        gc.collect()
        os._exit(0)  # which would also unregister the parent's loop
    os.waitpid(child, 0)
    assert parent.run(send(sink, RowBatch(["after the child"]))) == {}
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder, name, count, seal_every = sys.argv[1:]
    if name == "fork":
        fork(folder, int(count), float(seal_every))
    asyncio.run((write if name == "write" else send_all)(folder, int(count), float(seal_every)))
