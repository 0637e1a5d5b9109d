"""`sluicegate stream delete` and `replay`: messages of the log, outside of subscriptions.

1. A replay passes each message to a handler as its consumer would, one after the other in the order
   of positions, up to the horizon at the start. Nothing is stored, and no subscription is affected.
2. It ends at the first message that the handler does not acknowledge, and prints its position.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ..._core.errors import UnavailableError
from ..._core.logs import for_log
from ...cli.console import (
    INCOMPLETE,
    OK,
    TERMINATED,
    Termination,
    UseError,
    say,
)
from ...cli.named import named
from ...consumer.handling.handlers import as_handler
from ...consumer.lanes.message import handle_again
from ..client.access import Access, need_asyncpg
from ..schema.opened import check_schema_name, connected_to_log
from ..streams.log_reader import LogReader
from ..streams.reading import PAGE_BYTES
from ..streams.retention import Deleted, StreamRetention
from ..streams.selection import SelectedLog, StreamSelection
from .output import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Any

    from ..._core.source import Record
    from ..client.connections import Connections

BATCH_WITHIN = 3600.0
"""Seconds for a statement of a deletion, which may read the whole log."""
PAGE = 500
"""Messages per query of a replay."""


def which_messages(options: argparse.Namespace) -> str:
    """Return the messages that the arguments select, for a confirmation."""
    if options.stream is not None:
        return f"all messages of the stream {options.stream}"
    older = f"older than {options.older_than.isoformat()}" if options.older_than else ""
    before = f"before position {options.before}" if options.before is not None else ""
    return f"messages {' and '.join(filter(None, (older, before)))} of the log {options.schema}"


async def delete_messages(options: argparse.Namespace) -> int:
    """Delete messages; return the exit code, 1 if some were kept for a subscription."""
    retention, progress = StreamRetention(options.schema), Progress("messages", "deleted")

    def note(done: Deleted) -> None:
        progress.note(done.deleted, done.deleted + done.kept)

    async with AsyncExitStack() as stack:
        connections = await connect(stack, options)
        lent = await stack.enter_async_context(connections.lent())
        block = connections.statements.block(connections.answering(lent))
        await stack.enter_async_context(block)
        con = connections.answering(lent, BATCH_WITHIN)
        with progress.interruptions():
            if options.stream is not None:
                done = await retention.delete_stream(
                    con, options.stream, force=options.force, on_batch=note
                )
            else:
                done = await retention.delete(
                    con,
                    older_than=options.older_than,
                    before=options.before,
                    force=options.force,
                    on_batch=note,
                )
    say(f"{done.deleted} messages were deleted")
    if done.kept:
        say(f"{done.kept} were kept: a subscription has not handled them")
    return INCOMPLETE if done.kept else OK


async def replay(options: argparse.Namespace) -> int:
    """Replay the messages that the arguments select; return the exit code."""
    if options.last is not None and options.last < options.first:
        raise UseError("--from must not be after --to")
    handler = as_handler(named(options.handler), "MODULE:HANDLER")
    streams = StreamSelection.of(options.category, options.stream)
    log = SelectedLog(check_schema_name(options.schema), streams)
    progress, termination = _ReplayProgress(options.first), Termination()
    async with AsyncExitStack() as stack:
        reader = LogReader(await connect(stack, options), log)
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


class _ReplayProgress:
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


async def _run(
    reader: LogReader,
    handler: Callable[[Any], Awaitable[object]],
    progress: _ReplayProgress,
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
    horizon, _, server = await reader.horizon()
    end = horizon if last is None else min(last, horizon)
    while first <= end:
        found, is_cut, answered = await reader.span(first, end, PAGE, PAGE_BYTES)
        if answered != server:  # its log may have other messages up to the horizon
            raise UnavailableError("the server was restarted or replaced by another one")
        for record in found:
            yield record
        if len(found) < PAGE and not is_cut:
            return
        first = found[-1].offset + 1


async def connect(stack: AsyncExitStack, options: argparse.Namespace) -> Connections:
    """Connect to the log and check its schema. Raises `ConfigError`."""
    need_asyncpg()
    return await connected_to_log(stack, Access.of(options.dsn, size=1), options.schema)
