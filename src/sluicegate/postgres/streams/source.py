"""A source over the log of streams in PostgreSQL, as one process of a subscription."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.keywords import known_arguments
from ..._core.opening import opened
from ..._core.source import SourceCapabilities
from ..client.access import PostgresAccess
from ..records.source import RecordSource
from ..schema.opened import check_schema_name
from ..subscriptions.subscriptions import LEASE, PostgresSubscriptions
from .log import channel_of
from .log_reader import LogReader
from .options import StreamOptions, StreamStartPoint, check_providers
from .selection import SelectedLog, StreamSelection
from .serving import OpenStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AsyncExitStack
    from datetime import datetime, timedelta

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, PositionStore, SourceClaim, Unread
    from ..._core.subscriptions import SubscriptionLocks, SubscriptionState
    from ..client.connections import Connections
    from .options import StreamStart


@known_arguments(access=PostgresAccess)
class PostgresStreamSource(RecordSource[OpenStream]):
    """A subscription to the log of streams in PostgreSQL, served by one or more consumers.

    A record's key is the stream's name; its value is the JSON of the message's data, in bytes. Its
    headers are the entries of the metadata, then `type`, `id` and `version`. Its partition is the
    message's slot, its offset the position, its timestamp the time of the append by the server's
    clock. Messages of a stream are delivered in order. No message is skipped when transactions
    overlap, and no message of a rolled-back transaction is delivered.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        subscription: a name shared by all processes that serve it together.
        schema: the schema of the log, created by `sluicegate pg install`; default `"sluicegate"`.
        category: read only streams of this category: the part of a name before the first `-`.
        streams: read only streams with these names, where `*` matches any characters, as in
            `"order-*"`. The selection of a subscription cannot be changed.
        start: the start of the subscription when it is served for the first time: `"beginning"`
            (default); `"next"`: the first message that is appended later; or a `datetime` with a
            time zone: the messages of that time and later, and all messages appended after the
            start. A time in the future means `"next"`. Later starts ignore this argument.
        state: the storage of the positions; default: the log's schema.
        locks: the locks that divide the slots among the processes; default: leases in the log's
            schema, with even shares.
        lease: seconds after which the slots of a dead process pass to others, with the default
            locks; default 30.
        slots_at_once: the maximum number of slots of this process at a time, with locks that do not
            count the processes; default 32.
        hold: seconds after which such a slot is released if others have unread messages; default 5.
        poll: seconds between checks for new messages without a notification; default 0.25.
        ends: whether the source ends when all messages readable at its opening are delivered, by
            this process or others; otherwise it waits for more. It does not wait for paused slots,
            nor for messages behind a transaction that was open at that time.
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Used by one consumer
    at a time, on one loop. Opening connects, and raises `ConfigError` for a schema that is missing
    or too old, and for a subscription with a different selection. An unreachable server is reported
    in `explain()`, and tried again. A stored position beyond the end of the log, as after the
    restore of an older copy, raises `ConfigError`.
    """

    capabilities = SourceCapabilities(
        starts=frozenset({"beginning", "end", "time"}),
        batches=True,
        lag="counts",
        shares="partitions",
        cooperative=True,
        metadata=True,
        transactions="positions",
    )

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        subscription: str,
        schema: str = "sluicegate",
        category: str | None = None,
        streams: str | Iterable[str] | None = None,
        start: StreamStart | datetime = "beginning",
        state: SubscriptionState | None = None,
        locks: SubscriptionLocks | None = None,
        lease: float | timedelta = LEASE,
        slots_at_once: int = 32,
        hold: float | timedelta = 5.0,
        poll: float | timedelta = 0.25,
        ends: bool = False,
        clock: Clock | None = None,
    ) -> None:
        selection = SelectedLog(check_schema_name(schema), StreamSelection.of(category, streams))
        self._options = StreamOptions(
            slots_at_once=slots_at_once,
            subscription=checks.text("subscription", subscription),
            selection=selection,
            start=StreamStartPoint.of(start),
            poll=checks.seconds("poll", poll, usual=checks.LONG_DELAY),
            hold=checks.seconds("hold", hold, zero=True, usual=checks.LONG_TIMEOUT),
            ends=checks.flag("ends", ends),
        )
        super().__init__(dsn, lease=lease, clock=clock)
        check_providers(state, locks)
        if state is None or locks is None:
            usual = PostgresSubscriptions(dsn, schema=schema, lease=lease)
            state, locks = state or usual, locks or usual
        self._state: SubscriptionState = state
        self._locks: SubscriptionLocks = locks
        self._store: PositionStore | None = None

    @property
    def group(self) -> str:
        """The subscription's name, as the group of the positions."""
        return self._options.subscription

    def with_positions(self, store: PositionStore) -> PostgresStreamSource:
        """Return an unopened source of the same subscription with its positions in `store`.

        The subscription has copies of them, which may lag behind.
        """
        made = copy(self)
        made.leave_positions(store)
        return made

    def leave_positions(self, store: PositionStore) -> None:
        """Keep the positions in `store`. The source must not be open."""
        self._store, self._serving = store, None

    @property
    def _name(self) -> str:
        return self._options.subscription

    @property
    def _channel(self) -> str:
        return channel_of(self._options.selection.schema)

    async def _serve(
        self, connections: Connections, host: ClaimHost, stack: AsyncExitStack
    ) -> OpenStream:
        for provider in {id(each): each for each in (self._state, self._locks)}.values():
            await stack.enter_async_context(opened(provider))
        log = LogReader(connections, self._options.selection)
        return OpenStream(
            self._options,
            log,
            host,
            self._clock,
            state=self._state,
            locks=self._locks,
            store=self._store,
        )

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        """Count the readable messages from these offsets on, up to 256,000 in all, divided equally
        among the slots. Raises client errors.
        """
        return await self._opened.lag(positions)

    def replace(self, claim: SourceClaim) -> None:
        """End a claim and release its slot, which this or another process claims again."""
        self._opened.replace(claim)

    def __repr__(self) -> str:
        options = self._options
        return (
            f"PostgresStreamSource({self._access.place}, subscription={options.subscription!r}, "
            f"schema={options.selection.schema!r}, {options.selection})"
        )
