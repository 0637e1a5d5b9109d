"""A source over Kafka topics, as a member of a consumer group."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..._core.keywords import known_arguments
from ..._core.opening import only_user
from ..._core.source import SourceCapabilities
from ..access import KafkaAccess, access_of
from ..client.options import MemberOptions
from ..groups import GroupSource
from ..parallel_consumer_map import confluent_ranges

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from ..._core.source import (
        ClaimHost,
        Position,
        PositionStore,
        SourceClaim,
    )
    from ..arguments import Start
    from .sessions import Sessions  # noqa: F401  # in the name of the base


@known_arguments(access=KafkaAccess)
class KafkaSource(GroupSource["Sessions"]):
    """Kafka topics, read as a member of a consumer group.

    Args:
        topics: names of topics.
        pattern: a regular expression instead, matched from the beginning of the names. The client
            looks for new topics every `metadata_max_age_ms` (five minutes).
        bootstrap: `"host:port"`, several separated by commas, a list, or a `KafkaAccess`.
        group: the consumer group, in which the positions are stored.
        start: the start point of a partition that has no stored position, or whose position is no
            longer retained: `"earliest"` (default), `"latest"`, a time (a `datetime` with a time
            zone), or `"committed"`: the partition is not read, and this is reported. With
            `"latest"`, a partition that is created while the source is open begins at its first
            record.
        instance: a name of this member that stays the same across restarts (static membership): the
            group waits `session_timeout` for its return before it reassigns its partitions.
        session_timeout: seconds without a heartbeat after which the broker reassigns the
            partitions; default 45.
        rebalance_timeout: seconds for all members to complete a rebalance; default 60. The
            consumer's `drain` and the commit after it have to fit into it.
        max_poll_interval: seconds without a fetch after which the client leaves the group; default
            300. A consumer that does not fetch because its window is full stays a member.
        commit_timeout: timeout in seconds of one request about positions; default 5.
        client: other options of `aiokafka.AIOKafkaConsumer`, by name, besides those of the access:
            `{"isolation_level": ..., "fetch_max_bytes": ...}`. `fetch_max_wait_ms` is 100 unless
            set here: a broker may delay a fetch for this long, and with it all partitions that this
            member reads from that broker.

    Raises `ConfigError` for a bad argument and `MissingExtra` without aiokafka. Used by one
    consumer at a time, on one loop. Nothing is started before it is opened. An unreachable broker,
    a missing topic or a missing permission is reported in `explain()`, and tried again.
    """

    capabilities = SourceCapabilities(
        starts=frozenset({"beginning", "end", "time"}),
        batches=True,
        lag="ends",
        shares="partitions",
        metadata=True,
        foreign_map=confluent_ranges,
        transactions="positions",
    )

    def __init__(
        self,
        *topics: str,
        pattern: str | None = None,
        bootstrap: str | Sequence[str] | KafkaAccess,
        group: str,
        start: Start | datetime = "earliest",
        instance: str | None = None,
        session_timeout: float | timedelta = 45.0,
        rebalance_timeout: float | timedelta = 60.0,
        max_poll_interval: float | timedelta = 300.0,
        commit_timeout: float | timedelta = 5.0,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = MemberOptions.of(
            access=access_of(bootstrap),
            group=group,
            instance=instance,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            max_poll_interval=max_poll_interval,
            commit_timeout=commit_timeout,
            client=client,
        )
        super().__init__(topics, pattern, start, self._options.bootstrap, self._options.group)
        self.capabilities = replace(
            self.capabilities,
            keep_alive_every=self._options.max_poll_interval / 3,
            revoke_within=self._options.revoke_within,
        )
        self._store: PositionStore | None = None

    def with_positions(self, store: PositionStore) -> KafkaSource:
        """Return an unopened source of the same topics and group with its positions in `store`.

        It reads committed records only. Raises `ConfigError` if `isolation_level` is set otherwise.
        """
        made = copy(self)
        made.leave_positions(store)
        return made

    def leave_positions(self, store: PositionStore) -> None:
        """Keep the positions in `store`. The source must not be open."""
        self._options = self._options.committed_only()
        self._store, self._sessions = store, None

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Join the group in the background; at exit, end the claims and leave the group.

        The exit takes at most `close_timeout`, plus 3 s if the client hangs. Raises `ConfigError` if
        the source is already open, or aiokafka rejects its options.
        """
        from ..client.session import Session
        from .sessions import Sessions

        with only_user(self):
            first = Session.of(self._options)
            self._sessions = Sessions(self._options, self._topics, self._start, host, self._store)
            task = asyncio.get_running_loop().create_task(self._sessions.run(first))
            try:
                yield
            finally:
                self._sessions = None
                task.cancel()
                await asyncio.wait([task])
                await first.stop(self._options.close_timeout)  # the task may not have started

    async def keep_alive(self) -> None:
        """Count as active in the group."""
        await self._open().keep_alive()

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions and maps, in one request. Raises aiokafka's error, or `TimeoutError`."""
        if self._sessions is None:
            raise self._closed_error()
        membership = self._sessions.membership
        return () if membership is None else await membership.commit(positions)

    def replace(self, claim: SourceClaim) -> None:
        """Replace a claim by a new one of its partition, at the stored position."""
        if (membership := self._open().membership) is not None:
            membership.renew(claim)
