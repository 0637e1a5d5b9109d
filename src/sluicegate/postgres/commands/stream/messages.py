"""`sluicegate stream delete` for messages: all of a stream, or old ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ....cli.confirm import confirmed
from ....cli.dlq.output import say
from ....cli.exits import BAD_USE, INCOMPLETE, OK
from ....letters.text import printable
from ...client.access import Access, need_asyncpg
from ...schema.connected import connected_to_log
from ...streams.operating.retention import Deleted, StreamRetention

if TYPE_CHECKING:
    import argparse

    from ...client.connections import Connections

CLOSE_SECONDS = 5.0
BATCH_WITHIN = 3600.0
"""Seconds for a statement of a deletion, which may read the whole log."""
SAY_EVERY = 100_000
"""Number of examined messages between two lines of progress."""


class _DeletionProgress:
    """The progress of a deletion, printed periodically."""

    def __init__(self) -> None:
        self.done = Deleted(0, 0)
        self._said = 0

    def note(self, done: Deleted) -> None:
        """Note the counts after a batch."""
        self.done = done
        looked_at = done.deleted + done.kept
        if looked_at - self._said >= SAY_EVERY:
            self._said = looked_at
            say(f"{done.deleted} messages were deleted so far")


def delete_messages(options: argparse.Namespace) -> int:
    """Delete messages; return the exit code, 1 if some were kept for a subscription."""
    asyncio.run(_deleted(options, ask_only=True))
    what = _which_messages(options)
    force = " Also those that subscriptions have not handled." if options.force else ""
    if not confirmed(printable(f"delete {what} for good?{force}"), yes=options.yes):
        say("nothing was deleted")
        return BAD_USE
    done = asyncio.run(_deleted(options))
    say(f"{done.deleted} messages were deleted")
    if done.kept:
        say(f"{done.kept} were kept: a subscription has not handled them")
    return INCOMPLETE if done.kept else OK


def _which_messages(options: argparse.Namespace) -> str:
    if options.stream is not None:
        return f"all messages of the stream {options.stream}"
    older = f"older than {options.older_than.isoformat()}" if options.older_than else ""
    before = f"before position {options.before}" if options.before is not None else ""
    return f"messages {' and '.join(filter(None, (older, before)))} of the log {options.schema}"


async def _deleted(options: argparse.Namespace, *, ask_only: bool = False) -> Deleted:
    """Delete them, or only connect, to report a wrong schema before the confirmation."""
    retention, progress = StreamRetention(options.schema), _DeletionProgress()
    async with AsyncExitStack() as stack:
        connections = await connected(stack, options)
        if ask_only:
            return Deleted(0, 0)
        async with (
            connections.lent() as lent,
            connections.statements.block(connections.answering(lent)),
        ):
            con = connections.answering(lent, BATCH_WITHIN)
            try:
                if options.stream is not None:
                    return await retention.delete_stream(
                        con, options.stream, force=options.force, on_batch=progress.note
                    )
                return await retention.delete(
                    con,
                    older_than=options.older_than,
                    before=options.before,
                    force=options.force,
                    on_batch=progress.note,
                )
            except (asyncio.CancelledError, KeyboardInterrupt):  # depends on the handler of SIGINT
                say(
                    f"interrupted: at least {progress.done.deleted} messages were deleted; "
                    "run the same command again to continue"
                )
                raise


async def connected(stack: AsyncExitStack, options: argparse.Namespace) -> Connections:
    """Connect to the log and check its schema. Raises `ConfigError`."""
    need_asyncpg()
    access = Access.of(
        options.dsn,
        pool=None,
        close_pool=None,
        size=1,
        timeout=None,
        prepared="auto",
    )
    return await connected_to_log(stack, access, options.schema, close_timeout=CLOSE_SECONDS)
