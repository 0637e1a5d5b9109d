"""A source over Kafka topics through librdkafka, as a member of a consumer group."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..._core.keywords import known_arguments
from ..._core.opening import only_user
from ..._core.source import SourceCapabilities
from ..access import KafkaAccess, access_of
from ..groups import GroupSource
from ..parallel_consumer_map import confluent_ranges
from .options import ConfluentOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from ..._core.source import ClaimHost, Position, SourceClaim
    from ..arguments import Start
    from .options import GroupProtocol
    from .sessions import GroupSessions  # noqa: F401  # in the name of the base


@known_arguments(access=KafkaAccess)
class ConfluentKafkaSource(GroupSource["GroupSessions"]):
    """Kafka topics, read with librdkafka as a member of a consumer group.

    Only the partitions that move in a rebalance stop; the others continue.

    Args:
        topics: names of topics.
        pattern: a regular expression instead, matched from the beginning of the names. librdkafka
            evaluates it, or with `protocol="consumer"` the broker. The client looks for new topics
            every `topic.metadata.refresh.interval.ms` (five minutes).
        bootstrap: `"host:port"`, several separated by commas, a list, or a `KafkaAccess`.
        group: the consumer group, in which the positions are stored.
        protocol: `"cooperative"` (default): the members assign the partitions
            (`cooperative-sticky`); or `"consumer"`: the broker does (KIP-848, Kafka 4), including
            for members of the other kinds, which are otherwise excluded.
        start: the start point of a partition that has no stored position, or whose position is no
            longer retained: `"earliest"` (default), `"latest"`, a time (a `datetime` with a time
            zone), or `"committed"`: the partition is not read, and this is reported. With
            `"latest"`, a partition that is created while the source is open begins at its first
            record.
        instance: a name of this member that stays the same across restarts (static membership): the
            group waits for its return before it reassigns its partitions.
        session_timeout: seconds without a heartbeat after which the broker reassigns the
            partitions; default 45. With `protocol="consumer"` it is a setting of the broker.
        rebalance_timeout: seconds for this member to release partitions, and the longest time that
            its loop may be blocked; default 60. The consumer's `drain` and the commit after it have
            to fit into it.
        commit_timeout: timeout in seconds of one request about positions; default 5.
        client: other librdkafka options, by name, besides those of the access:
            `{"isolation.level": ...}`. `fetch.wait.max.ms` is 100 and `queued.min.messages`
            2,000 unless set here.

    Raises `ConfigError` for a bad argument and `MissingExtra` without confluent-kafka. Used by one
    consumer at a time, on one loop. Nothing is started before it is opened. An unreachable broker,
    a missing topic or a missing permission is reported in `explain()`, and tried again.
    """

    capabilities = SourceCapabilities(
        starts=frozenset({"beginning", "end", "time"}),
        batches=True,
        lag="ends",
        shares="partitions",
        cooperative=True,
        metadata=True,
        foreign_map=confluent_ranges,
    )

    def __init__(
        self,
        *topics: str,
        pattern: str | None = None,
        bootstrap: str | Sequence[str] | KafkaAccess,
        group: str,
        protocol: GroupProtocol = "cooperative",
        start: Start | datetime = "earliest",
        instance: str | None = None,
        session_timeout: float | timedelta | None = None,
        rebalance_timeout: float | timedelta = 60.0,
        commit_timeout: float | timedelta = 5.0,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = ConfluentOptions.of(
            access=access_of(bootstrap),
            group=group,
            protocol=protocol,
            instance=instance,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            commit_timeout=commit_timeout,
            client=client,
        )
        super().__init__(topics, pattern, start, self._options.bootstrap, self._options.group)
        self.capabilities = replace(
            self.capabilities,
            revoke_within=self._options.revoke_within,
        )

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Join the group in the background; at exit, end the claims and leave the group.

        The exit takes at most twice `close_timeout`. Raises `ConfigError` if the source is already
        open, or librdkafka rejects its options.
        """
        from .sessions import GroupSessions

        with only_user(self):
            sessions = self._sessions = GroupSessions(
                self._options, self._topics, self._start, host
            )
            task = asyncio.get_running_loop().create_task(sessions.run())
            try:
                yield
            finally:
                self._sessions = None
                task.cancel()
                await asyncio.wait([task])
                await sessions.close()

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store positions and maps in one request; return the claims whose positions are stored.

        Raises a librdkafka error or `TimeoutError`; some positions may then have been stored.
        """
        return await self._open().commit(positions)
