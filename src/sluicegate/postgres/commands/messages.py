"""`sluicegate stream delete`: messages of the log are deleted."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ...cli.console import (
    INCOMPLETE,
    OK,
    say,
)
from ..client.access import Access, need_asyncpg
from ..schema.opened import connected_to_log
from ..streams.retention import Deleted, StreamRetention
from .output import Progress

if TYPE_CHECKING:
    import argparse

    from ..client.connections import Connections

BATCH_WITHIN = 3600.0
"""Seconds for a statement of a deletion, which may read the whole log."""


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


async def connect(stack: AsyncExitStack, options: argparse.Namespace) -> Connections:
    """Connect to the log and check its schema. Raises `ConfigError`."""
    need_asyncpg()
    return await connected_to_log(stack, Access.of(options.dsn, size=1), options.schema)
