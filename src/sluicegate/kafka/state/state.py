"""The state of partitions in Kafka, stored in the transactions of their positions."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ClosedError
from ..._core.extras import need
from ..._core.keywords import known_arguments
from ...flow.state.changes import ChangeLog
from ...flow.state.positions import PositionedState
from ...flow.state.store import KeptStore, check_decodes, checked_codec
from ..access import KafkaAccess, access_of
from ..arguments import topic_of
from ..client.options import MAX_BATCH_BYTES, ProducerOptions
from ..sink.sink import KafkaSink
from ..source.source import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.source import TopicPartition, TransactionalSource
    from ...flow.state.changes import Stored
    from ...flow.state.positions import StateKeeper
    from ...flow.state.store import StateCodec


@known_arguments(access=KafkaAccess)
class KafkaState(PositionedState):
    """The state of a consumer's partitions in a compacted Kafka topic; see
    `Consumer.run_events`.

    It is in memory while it is used. Its changes, the records forwarded by handlers, and the
    position after them commit in one Kafka transaction. After any crash, the state is therefore
    that of the events before the position, and readers of committed records see each forwarded
    record once.

    Args:
        topic: the name of the state topic, one for each consumed topic and each group. Created if
            it does not exist, with as many partitions as the consumed topic, and 3 replicas, or one
            on each broker if there are fewer. Its records are the entries: a key, and an encoded
            value or a tombstone.
        bootstrap: `"host:port"`, several separated by commas, a list, or a `KafkaAccess`; the
            cluster of the consumed topic.
        codec: the encoding of values; default: JSON.
        max_pending: the maximum number of turns whose changes wait for their position; default
            10,000. At this limit, no later event of the partition begins until they are stored.
        max_pending_bytes: the same in bytes of keys, encoded values and forwarded records; default
            16 MiB.
        transaction_timeout: as for `KafkaSink`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without aiokafka. The constructor
    does not connect. Opening suspends; it raises `ConfigError` for a refused login, for a topic
    that is not compacted, and for a topic without permission to describe it; and `UnavailableError`
    if no broker responds.
    """

    _run_time = ("_kept",)
    _fitting = "KafkaSource, on the same cluster"

    def __init__(
        self,
        *,
        topic: str,
        bootstrap: str | Sequence[str] | KafkaAccess,
        codec: StateCodec | None = None,
        max_pending: int = 10_000,
        max_pending_bytes: int = 16 << 20,
        transaction_timeout: float | timedelta = 60.0,
    ) -> None:
        super().__init__()
        need("aiokafka", "kafka", "KafkaState")
        from .topic import StateTopic

        access = access_of(bootstrap)
        self._codec = checked_codec(codec)
        self._most = checks.count("max_pending", max_pending)
        self._most_bytes = checks.count("max_pending_bytes", max_pending_bytes)
        self._sink = KafkaSink(
            attrgetter("topic"),
            bootstrap=access,
            key=attrgetter("key"),
            value=attrgetter("value"),
            headers=attrgetter("headers"),
            partition=attrgetter("partition"),
            transaction_timeout=transaction_timeout,
        )
        topic_of("topic", topic)
        options = ProducerOptions.of(
            access=access,
            compression=None,
            max_batch_bytes=MAX_BATCH_BYTES,
            transaction_timeout=transaction_timeout,
        )
        self._topic = StateTopic(topic, options)

    @property
    def creation(self) -> str:
        """The command that creates the topic, for a topic of N partitions."""
        return self._topic.creation

    def _keeper(self, source: TransactionalSource) -> StateKeeper:
        if not self.is_open:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        if not isinstance(source, KafkaSource):
            raise bad("source", source, f"must be a {self._fitting}")
        from .keeper import KafkaKeeper

        as_text = self._codec.column != "bytea"
        return KafkaKeeper(source.group, self._topic, self._sink, as_text=as_text)

    def _made(
        self, partition: TopicPartition, entries: dict[str, Stored], offset: int
    ) -> KeptStore:
        check_decodes(self._codec, entries)
        log = ChangeLog(self._most, self._most_bytes, at=offset)
        return KafkaStore(partition, entries, log, self._codec, self._topic.check_value)

    async def _open(self, stack: AsyncExitStack) -> None:
        await self._topic.examine()
        await stack.enter_async_context(self._sink)

    def __repr__(self) -> str:
        return f"KafkaState(topic={self._topic.name!r})"


class KafkaStore(KeptStore):
    """The state of one partition, which can forward records."""

    def forward(self, record: object) -> None:
        """Send a record with the changes of this turn.

        Raises `ConfigError` for anything but a `KafkaRecord`, and outside a turn.
        """
        if not isinstance(record, KafkaRecord):
            raise bad(
                "record", record, "must be a KafkaRecord: it is sent in the state's transaction"
            )
        self.add_forwarded(record)


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record for `EventContext.forward` of a consumer whose state is a `KafkaState`.

    Args:
        topic: an existing topic. If it does not exist, no state or position of the partition is
            stored until it does.
        value: bytes, or a string, which is sent as UTF-8; `None` is a tombstone and needs a key.
        key: like `value`. Records with the same key go to the same partition, as with Kafka's own
            clients.
        headers: pairs of a name and bytes.
        partition: number of the partition; default: determined by the key, or any.

    Raises `ConfigError` for a bad argument.
    """

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    partition: int | None = None

    def __post_init__(self) -> None:
        topic_of("topic", self.topic)
        for name, part in (("value", self.value), ("key", self.key)):
            _check_part(name, part)
        if self.value is None and self.key is None:
            raise checks.bad("key", None, "must be given for a record without a value, a tombstone")
        for header in self.headers:
            if not _is_header(header):
                rule = "must be pairs of a non-empty name and bytes"
                raise checks.bad("headers", header, rule)
        if self.partition is not None:
            checks.count("partition", self.partition, least=0)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.value or b"") + len(self.key or b"")


def _check_part(name: str, part: object) -> None:
    if part is not None and not isinstance(part, (bytes, str)):
        raise checks.bad(name, part, "must be bytes, a string or None")
    if isinstance(part, str) and not part.isascii():
        try:
            part.encode()
        except UnicodeEncodeError:
            raise checks.bad(name, part, "must be text that can be encoded as UTF-8") from None


def _is_header(header: object) -> bool:
    match header:
        case (str(name), bytes()):
            return bool(name)
        case _:
            return False
