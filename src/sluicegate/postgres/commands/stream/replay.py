"""`sluicegate stream replay`: messages of the log through a handler, one after the other.

1. The handler receives each message as from its consumer, in the order of positions, up to the
   horizon at the start. Nothing is stored, and no subscription is affected.
2. The replay ends at the first message that the handler does not acknowledge, and prints its
   position.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ...._core.logs import for_log
from ....cli.dlq.output import say
from ....cli.exits import INCOMPLETE, OK, TERMINATED, Termination
from ....cli.named import UseError, named
from ....consumer.handlers import as_handler
from ....consumer.replayed import handle_again
from ...schema.opened import check_schema_name
from ...streams.messages.reading import PAGE_BYTES
from ...streams.messages.selection import StreamSelection
from ...streams.source.log_reader import LogReader
from ...streams.source.selection import SelectedLog
from .messages import connected

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Any

    from ...._core.source import Record

PAGE = 500


class _Progress:
    """The progress of a replay."""

    def __init__(self, first: int) -> None:
        self.next = first
        """The position to continue with."""
        self.handled = 0
        self.running: int | None = None
        """The position of the message that the handler is running."""

    def begin(self, position: int) -> None:
        """Note that the handler receives a message."""
        self.running = position

    def end(self, position: int) -> None:
        """Note that the handler has acknowledged it."""
        self.running = None
        self.handled += 1
        self.next = position + 1

    def __str__(self) -> str:
        return f"{self.handled} messages were handled"

    @property
    def continued(self) -> str:
        """The argument that continues the replay."""
        at = self.next if self.running is None else self.running
        return f"--from {at} continues"


async def replay(options: argparse.Namespace) -> int:
    """Replay the messages that the arguments select; return the exit code."""
    if options.last is not None and options.last < options.first:
        raise UseError("--from must not be after --to")
    handler = as_handler(named(options.handler), "MODULE:HANDLER")
    streams = StreamSelection.of(options.category, options.stream)
    log = SelectedLog(check_schema_name(options.schema), streams)
    progress, termination = _Progress(options.first), Termination()
    async with AsyncExitStack() as stack:
        reader = LogReader(await connected(stack, options), log)
        try:
            failure = await _run(reader, handler, progress, options.last)
        except asyncio.CancelledError:
            say(f"interrupted: {progress}; {progress.continued}")
            if termination.has_come:
                return TERMINATED
            raise
    if failure is None:
        say(f"replayed: {progress.handled} messages")
        return OK
    why = for_log(failure)
    say(f"stopped at message {progress.running}: {why}; {progress}; {progress.continued}")
    return INCOMPLETE


async def _run(
    reader: LogReader,
    handler: Callable[[Any], Awaitable[object]],
    progress: _Progress,
    last: int | None,
) -> Exception | None:
    """Handle messages to the end; return the error of the first one that was not acknowledged."""
    async for record in _records(reader, progress.next, last):
        progress.begin(record.offset)
        try:
            await handle_again(handler, record)
        except Exception as error:
            return error
        progress.end(record.offset)
    return None


async def _records(reader: LogReader, first: int, last: int | None) -> AsyncGenerator[Record]:
    horizon = (await reader.horizon()).position
    end = horizon if last is None else min(last, horizon)
    while first <= end:
        found, is_cut = await reader.span(first, end, PAGE, PAGE_BYTES)
        for record in found:
            yield record
        if len(found) < PAGE and not is_cut:
            return
        first = found[-1].offset + 1
