"""A JetStream stream as a source."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.errors import ClosedError
from ..._core.keywords import known_arguments
from ..._core.opening import only_user
from ..._core.source import SourceCapabilities
from ..options import NatsOptions
from .options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from ..._core.source import (
        ClaimHost,
        Fetched,
        Position,
        SourceClaim,
        SourceRecord,
        Unread,
    )
    from .options import Key, Start
    from .sessions import StreamSessions


@known_arguments()
class JetStreamSource:
    """A NATS JetStream stream, read through a durable consumer. Messages of a key are handled
    one after another, in the order of the stream; different keys are handled concurrently.

    A record has the message's payload as its value, its headers, and its sequence number as the
    offset. Its topic is the stream. Each record is acknowledged individually once it is settled, in
    any order. A record that failed for good (a dead letter, or poison without one) is terminated. A
    failed record is retried in its place, so that no later record of its key overtakes it. While
    records are held, the server's acknowledgement wait is extended, regardless of how long their
    handlers take.

    A consumer created by this source is read by one process at a time. Other processes with the
    same `durable` are on standby, and one of them takes over if it stops. With `partitions`, the
    processes of a group share a divided stream.

    Delivery is at least once. JetStream has no fencing: a process that was frozen for longer than
    `ack_wait` detects this before it settles anything, and handles its held messages again. Until
    then, its handlers may run concurrently with those of another process.

    Args:
        stream: the name of an existing stream.
        servers: `"nats://host:4222"`, several separated by commas, or a list. A login is never
            shown.
        durable: the name of the consumer, which stores the acknowledgements. It is created if it
            does not exist. With `partitions`, the names are `durable-0`, `durable-1`, ...
        subjects: the subjects to read, with `*` and `>`; default: the whole stream.
        partitions: the number of partitions of a divided stream (see `partitioned`), which the
            processes of the group share evenly.
        member: the name of this process in the group; default: a unique name.
        key: the key of a record: `"subject"` (the default; without the partition), the number of a
            token of the subject (the first is 1) or several of them, `"header:NAME"`, or a function
            of the subject and the headers.
        start: the start of a new consumer: `"earliest"` (default), `"latest"`, a sequence number,
            or a time (a `datetime` with a time zone).
        ack_wait: seconds after which held messages of a dead process pass to others; default 30.
            Extended three times in that time.
        max_pending: the maximum number of held messages of a new consumer; default 10,000. The
            window of the `Consumer` has to be smaller.
        prefetch: number of messages to fetch ahead, for all partitions; default 500. Fewer if the
            consumer has no room for their bytes.
        double_ack: whether each acknowledgement waits for the server's confirmation. Otherwise, if
            one is lost with a server, it is repeated, or its message is handled again.
        create: whether to create a consumer that does not exist; otherwise this is reported in
            `explain()`.
        domain: the JetStream domain.
        connect_timeout: timeout in seconds of each attempt to connect; default 2.
        close_timeout: timeout in seconds for giving back held messages at the end; default 5.
        client: other options of nats-py's `connect`, by name: `user`, `password`, `token`,
            `user_credentials`, `nkeys_seed`, `tls` (an `SSLContext`, or a function that creates
            one), ...

    Raises `ConfigError` for a bad argument and `MissingExtra` without nats-py. Used by one consumer
    at a time, on one loop. The constructor does not connect. A missing stream, a missing permission
    and an unreachable server are reported in `explain()`, and tried again. Reading requires
    permissions for `$JS.API.STREAM.INFO`, `$JS.API.CONSUMER.*`, `$JS.ACK` and an inbox; a group
    also uses the subject `_SLUICEGATE.members.STREAM.DURABLE`.
    """

    capabilities = SourceCapabilities(
        starts=frozenset({"beginning", "end", "time", "offset"}),
        batches=True,
        lag="counts",
        shares="partitions",
        cooperative=True,
        settles_each=True,
        extends=True,
    )

    def __init__(
        self,
        stream: str,
        *,
        servers: str | Sequence[str],
        durable: str,
        subjects: str | Sequence[str] | None = None,
        partitions: int | None = None,
        member: str | None = None,
        key: Key = "subject",
        start: Start = "earliest",
        ack_wait: float | timedelta = 30.0,
        max_pending: int = 10_000,
        prefetch: int = 500,
        double_ack: bool = False,
        create: bool = True,
        domain: str | None = None,
        connect_timeout: float | timedelta = 2.0,
        close_timeout: float | timedelta = 5.0,
        **client: Any,
    ) -> None:
        self._options = ReadOptions.of(
            stream,
            durable=durable,
            member=member,
            subjects=subjects,
            partitions=partitions,
            key=key,
            start=start,
            ack_wait=ack_wait,
            max_pending=max_pending,
            prefetch=prefetch,
            double_ack=double_ack,
            create=create,
            domain=domain,
        )
        self._connection = NatsOptions.of(
            servers=servers, connect_timeout=connect_timeout, client=client, of="JetStreamSource"
        )
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._sessions: StreamSessions | None = None

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Connect and read; at exit, end the claims and give back the unsettled messages, in order.

        Raises `ConfigError` if it is already open, for an unsuitable consumer
        with the same name, and a stream with a different division.
        """
        from .sessions import StreamSessions

        with only_user(self):
            sessions = self._sessions = StreamSessions(
                self._options, self._connection, host, self._close_timeout
            )
            task = asyncio.get_running_loop().create_task(sessions.run())
            try:
                await sessions.wait_opened()
                yield
            finally:
                self._sessions = None
                task.cancel()
                await asyncio.wait([task])

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver messages of these claims. Never ends.

        Raises `ConfigError` for errors that a retry cannot resolve.
        """
        return await self._open().fetch(claims, most)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Acknowledge the settled messages of these claims.

        Raises client errors; unsent acknowledgements are sent by the next call.
        """
        return await self._open().commit(positions)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the sequence numbers after the last arrived messages; `lag` asks the server."""
        return self._open().ends(claims)

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """Return the number of unsettled messages, and the age of the oldest, according to the
        server.

        Raises client errors.
        """
        return await self._open().lag(positions.keys())

    def extend(self, records: Iterable[SourceRecord]) -> None:
        """Extend the acknowledgement wait of these records now."""
        self._open().extend(records)

    def _open(self) -> StreamSessions:
        if self._sessions is None:
            raise ClosedError(f"{self!r} is not open")
        return self._sessions

    def __repr__(self) -> str:
        options = self._options
        return (
            f"JetStreamSource({options.stream!r}, servers={self._connection.place!r}, "
            f"durable={options.durable!r})"
        )
