"""A stream of NATS JetStream as a source."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from ..._clients.nats.options import NatsOptions
from ..._core import checks
from ..._core.errors import ClosedError
from ..._core.source import SourceCapabilities, SourceTraits
from .options import ReadOptions
from .sessions import StreamSessions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..._core.source import (
        ClaimHost,
        Fetched,
        Position,
        SourceClaim,
        SourceRecord,
        Unread,
    )
    from .options import Start
    from .subjects import Key


class JetStreamSource:
    """A stream of NATS JetStream, read through a durable consumer: the messages of a key one after
    another in the order of the stream, different keys side by side.

    A record has the message's payload as its value, its headers, and its sequence number as the offset.
    Its topic is the stream. Every record is acknowledged by itself once it is settled, in whatever order;
    one that is given up (a dead letter, or poison without one) is terminated. A failed record is tried
    again in its place, so that nothing of its key overtakes it. While records are held, the server's
    acknowledgement wait is extended, however long their handlers take.

    One process at a time reads a consumer that this source makes; others with the same `durable` stand
    by, and one of them takes over. With `partitions`, the processes of a group share a divided stream.

    AckSubject is at least once. JetStream knows no fencing: a process that is frozen for longer than
    `ack_wait` finds that out before it settles anything, and handles again what it held. But what its
    handlers do meanwhile, they do beside those of another process.

    Args:
        stream: the name of the stream, which must exist.
        servers: `"nats://host:4222"`, several of them with commas, or a list of them. Never shown with
            a login.
        durable: the name of the consumer, which keeps what is acknowledged. It is made if it does not
            exist. With `partitions`, the names are `durable-0`, `durable-1`, ...
        subjects: the subjects to read, with `*` and `>`; default: the whole stream.
        partitions: the number of partitions of a stream whose subjects are divided (see `partitioned`),
            which the processes of the group share evenly.
        member: the name of this process in the group; default: one of its own.
        key: the key of a record: `"subject"` (the default; without the partition), the number of a token
            of the subject (the first is 1) or several of them, `"header:NAME"`, or a function of the
            subject and the headers.
        start: where a new consumer begins: `"earliest"`, `"latest"`, a sequence number, or a time (a
            `datetime` with its zone).
        ack_wait: seconds without a sign of life after which what a process holds passes to others;
            default 30. Extended three times in that time.
        max_pending: the most messages of a new consumer that may be held; default 10,000. The window of
            the `Consumer` has to be smaller.
        prefetch: messages that are fetched ahead, for all partitions; default 500.
        double_ack: whether each acknowledgement waits for the server to have it. Otherwise one that is
            lost with a server is repeated, or its message is handled again.
        create: whether a consumer that does not exist is made; otherwise that is a reason in `explain()`.
        domain: the JetStream domain.
        connect_timeout: seconds for each try to reach a server; default 2.
        close_timeout: seconds for giving back what is held at the end; default 5.
        clock: the source of time; default: the loop's.
        client: other options of nats-py's `connect`, under their names: `user`, `password`, `token`,
            `user_credentials`, `nkeys_seed`, `tls` (an `SSLContext`, or a function that makes one), ...

    Raises `ConfigError` for a bad argument and `MissingExtra` without nats-py. Used by one consumer at a
    time, on one loop. Nothing is connected before it is opened. A stream that does not exist, a missing
    right and a server that cannot be reached are reasons in `explain()`, and tried again. The stream is
    read with the rights to `$JS.API.STREAM.INFO`, `$JS.API.CONSUMER.*`, `$JS.ACK` and an inbox; a group
    also uses the subject `_PENSTOCK.members.STREAM.DURABLE`.
    """

    capabilities: ClassVar = SourceCapabilities(
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
        clock: Clock | None = None,
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
        self._clock = checks.checked_clock(clock)
        self.traits = SourceTraits(settles_each=True)
        self._sessions: StreamSessions | None = None

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Connect and read; at exit, end the claims and give back what is not settled, in order.

        Raises `ClosedError` if it is open, and `ConfigError` for a consumer of another kind under the
        same name, and a stream that is divided otherwise.
        """
        if self._sessions is not None:
            raise ClosedError(f"{self!r} is open already, for another consumer")
        sessions = self._sessions = StreamSessions(
            self._options, self._connection, host, self._clock, self._close_timeout
        )
        task = asyncio.get_running_loop().create_task(sessions.run())
        try:
            await sessions.opened()
            yield
        finally:
            self._sessions = None
            task.cancel()
            await asyncio.wait([task])

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver messages of these claims. Never ends; raises `ConfigError` for what no other try
        puts right.
        """
        return await self._open().fetch(claims, most)

    async def keep_alive(self) -> None:
        """Do nothing: what is held is extended beside the fetches."""

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Acknowledge what is settled in these claims. Raises errors of the client; what could not be
        sent is sent by the next call.
        """
        return await self._open().commit(positions)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """The sequence numbers after the last messages that have arrived; `lag` asks the server."""
        return self._open().ends(claims)

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """The messages that are not settled, and the age of the oldest one, as the server says.

        Raises errors of the client.
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
