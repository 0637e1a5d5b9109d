"""The compacted topic of a state: its settings, creation and contents.

1. Partition n of the topic contains the changes of partition n of the source's topic. The topic
   therefore serves one topic of one consumer group.
2. Each transaction ends with a mark; see `flow/state/mark.py`. Its key names the group and the
   source's topic, so that compaction keeps the marks of each, and a topic of several states is
   detected.
3. A mark contains the number of entries and the sum of their checksums. A restore compares them
   with the records that it has read, so records that were deleted, lost or written by another
   program are detected.
4. A topic that deletes by age or size would lose entries silently, and is refused.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ClientPartition
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import UnavailableError
from ..._core.source import TopicPartition
from ..._core.text import text_of
from ...flow.state.changes import mismatch
from ...flow.state.store import check_size
from ..arguments import COMMITTED, milliseconds
from ..client.errors import opening_error
from ..client.internals import close_client, decode_singly, is_undecodable
from ..client.options import FETCH_WAIT

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )

    from ..._core.source import Position
    from ...flow.state.changes import StateMark, Stored
    from ..client.options import ProducerOptions

MARKS = b"\0"
"""The first byte of the key of a mark. No key of a state contains a NUL."""
COMPACT = "compact"
OVERHEAD = 512
"""Maximum number of bytes of a record and its batch in addition to key and value."""
REPLICAS = 3
"""Replicas of a created topic, if there are as many brokers."""
_PATIENCE = 3
"""Time limit for a created topic to be found, in request timeouts."""
_LOOK_AGAIN = 0.05
"""Delay in seconds before another check of a created topic."""
_START_OVER = "Restore the topic, or, to start over, delete both this topic and the group's offsets"
SLICE = 20_000
"""Number of entries that are added without yielding to the event loop."""
_BITS = (1 << 64) - 1
_NO_RIGHT = kafka.TopicAuthorizationFailedError.errno
_MISSING = kafka.UnknownTopicOrPartitionError.errno
_THERE = {0, kafka.TopicAlreadyExistsError.errno}
PAGE = 5000
"""Number of records in a page."""
PATIENCE = 3
"""Time limit without progress, in request timeouts."""
_STUCK = (
    "%s could not be read from %d on, up to %d, for %g s: a broker does not answer, or a transaction "
    "of another program is open in it"
)
_NO_ENDS = "the ends of %s could not be read in %g s: a broker does not answer"


def mark_key(group: str, topic: str) -> bytes:
    """Return the key of the marks of a group and a source's topic."""
    return MARKS + f"sluicegate {group} {topic}".encode()


class StateTopic:
    """The topic on its brokers."""

    def __init__(self, name: str, options: ProducerOptions) -> None:
        self.name = name
        self._options = options
        self._partitions = 0
        self._needed = 0
        """The number of partitions of the source's topic."""
        self._largest = 0
        """Maximum number of bytes of a record, if known."""

    @property
    def creation(self) -> str:
        """The command that creates the topic with N partitions."""
        settings = f"--partitions N --config cleanup.policy={COMPACT}"
        return f"kafka-topics.sh --create --topic {self.name} {settings}"

    def check_value(self, key: str, stored: Stored) -> None:
        """Raise `ConfigError` for a value that does not fit into a record of the topic."""
        check_size(key, stored, self._largest - 4 * len(key))

    async def examine(self) -> None:
        """Check the topic, if it exists.

        Raises `ConfigError` if it would lose entries or may not be described, and
        `UnavailableError`.
        """
        async with TopicAdmin.of(self._options) as admin:
            await self._examine(admin)

    async def examine_used(self) -> None:
        """Check the topic of a state in use, after a failed transaction.

        Raises like `examine`, and `UnavailableError` if the topic was deleted.
        """
        async with TopicAdmin.of(self._options) as admin:
            if not await self._examine(admin):
                told = f"the topic {self.name!r} of the state was deleted"
                raise UnavailableError(f"{told}, so nothing can be stored. {_START_OVER}")

    async def _examine(self, admin: TopicAdmin) -> bool:
        try:
            settings = await admin.settings(self.name)
        except TopicRefused as error:
            rule = "may not be described: allow the user DESCRIBE_CONFIGS, DESCRIBE, READ and WRITE on it"
            raise bad("topic", self.name, rule) from error
        if settings is None:
            return False
        policy = settings.get("cleanup.policy")
        if policy != COMPACT:
            rule = (
                f"is a topic with cleanup.policy={policy}, which deletes entries of the state; set it to "
                f"{COMPACT}: kafka-configs.sh --alter --topic {self.name} --add-config cleanup.policy={COMPACT}"
            )
            raise bad("topic", self.name, rule)
        self._largest = int(settings["max.message.bytes"]) - OVERHEAD
        return True

    async def prepare(self, partitions: Collection[TopicPartition]) -> None:
        """Create the topic if it does not exist, with as many partitions as the source's topic.

        Raises `ConfigError` for partitions of several topics, and for a topic that cannot be
        created; and `UnavailableError`.
        """
        topics = {each.topic for each in partitions}
        if len(topics) > 1:
            rule = f"can hold the state of one topic, but the source has {sorted(topics)}; use a state for each"
            raise bad("topic", self.name, rule)
        needed = max(each.partition for each in partitions) + 1
        if needed <= self._partitions:
            return
        (source,) = topics
        async with TopicAdmin.of(self._options) as admin:
            self._needed = max(needed, await admin.partitions(source))
            if await self._examine(admin):
                self._partitions = await admin.partitions(self.name)
            else:
                await self._create(admin, self._needed)
                self._partitions = self._needed

    async def check_place(self, partition: TopicPartition) -> None:
        """Raise `ConfigError` if the topic has too few partitions for the state of this one.

        Its other partitions are not affected. Raises like `prepare`.
        """
        await self.prepare([partition])
        if partition.partition >= self._partitions:
            rule = (
                f"has {self._partitions} partitions, but {partition.topic} has {self._needed}; add some: "
                f"kafka-topics.sh --alter --topic {self.name} --partitions {self._needed}. The state of "
                "a key stays in its partition: a key whose records now go to another one has none there"
            )
            raise bad("topic", self.name, rule)

    async def _create(self, admin: TopicAdmin, partitions: int) -> None:
        try:
            replicas = min(REPLICAS, await admin.brokers())
            await admin.create(self.name, partitions, replicas)
        except TopicRefused as error:
            command = self.creation.replace("partitions N", f"partitions {partitions}")
            rule = f"does not exist, and cannot be created ({error}); create it by: {command}"
            raise bad("topic", self.name, rule) from error
        give_up_at = LOOP_CLOCK.now() + _PATIENCE * self._options.request_timeout
        while not await self._examine(admin):  # brokers know it later than the controller
            if LOOP_CLOCK.now() >= give_up_at:
                raise UnavailableError(f"the topic {self.name!r} was created, but is not found")
            await LOOP_CLOCK.sleep(_LOOK_AGAIN)

    def pages(self, partition: int) -> AsyncGenerator[Sequence[Any]]:
        """Yield all committed records of a partition, one page at a time."""
        return committed_pages(self._options, TopicPartition(self.name, partition))

    def check(
        self,
        mark: StateMark | None,
        content: StateContent,
        position: Position | None,
        group: str,
        partition: TopicPartition,
    ) -> None:
        """Raise `ConfigError` unless this is the state of the group's position in a partition.

        `mark` is the last one of the topic, or one of another group or topic.
        """
        at = "no position" if position is None else f"the position {position.offset}"
        differs = mismatch(mark, position)
        if mark is None and content.entries:
            rule = "has records that were not written by a state; use a topic only for the state"
        elif mark is None:
            if differs is None:
                return
            rule = (
                f"has no state of {partition}, but the group {group!r} has {at} there, which was stored "
                "with one: this is another topic, or it was recreated. Use the previous topic, or, to "
                "start over, delete the group's offsets"
            )
        elif (mark.group, mark.topic) != (group, partition.topic):
            rule = (
                f"has the state of the topic {mark.topic!r} for the group {mark.group!r}, but this is "
                f"{partition.topic!r} for {group!r}; use a separate topic for each"
            )
        elif differs == "moved":
            rule = (
                f"has the state of {partition} at {mark.position}, but the group {group!r} has {at}: it "
                f"was moved without the state. Set the group's offset of {partition} to {mark.position}, "
                "or, to start over, delete both this topic and the group's offsets"
            )
        elif differs == "behind":
            rule = (
                f"has lost the end of the state of {partition}: its last transaction has number "
                f"{mark.number}, but the position {mark.position} was stored by another one. {_START_OVER}"
            )
        elif mark.content != str(content):
            rule = (
                f"has a changed state of {partition}: {content}, but its last transaction has left "
                f"{mark.content}. Records were deleted, or lost, or written by another program. {_START_OVER}"
            )
        else:
            return
        raise bad("topic", self.name, rule)


class StateContent(NamedTuple):
    """The content of a partition's state."""

    entries: int = 0
    checksum: int = 0

    def after(
        self, replaced: Mapping[str, Stored | None], changes: Mapping[str, Stored | None]
    ) -> StateContent:
        """Return the content after these changes of these values; `None` is a missing entry."""
        return self.without(replaced.items()).plus(changes.items())

    def plus(self, entries: Iterable[tuple[str, Stored | None]]) -> StateContent:
        """Return the content with more entries."""
        found = [_checksum(key, value) for key, value in entries if value is not None]
        return StateContent(self.entries + len(found), (self.checksum + sum(found)) & _BITS)

    def without(self, entries: Iterable[tuple[str, Stored | None]]) -> StateContent:
        """Return the content without some entries."""
        found = [_checksum(key, value) for key, value in entries if value is not None]
        return StateContent(self.entries - len(found), (self.checksum - sum(found)) & _BITS)

    def __str__(self) -> str:
        return f"{self.entries} entries with the checksum {self.checksum:x}"


async def content_of(entries: Mapping[str, Stored]) -> StateContent:
    """Return the content of all entries. Suspends between slices of a large state."""
    content, rest = StateContent(), iter(entries.items())
    while part := [*islice(rest, SLICE)]:
        content = content.plus(part)
        await LOOP_CLOCK.sleep(0)
    return content


def _checksum(key: str, value: Stored) -> int:
    encoded = value if isinstance(value, bytes) else value.encode()
    return crc32(encoded, crc32(f"{key}\0".encode()))


class TopicRefused(Exception):
    """A broker does not allow the description or creation of a topic."""


class TopicAdmin:
    """An open admin client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def of(cls, options: ProducerOptions) -> AsyncIterator[TopicAdmin]:
        """Open a client. Raises `ConfigError` for a refused login, and `UnavailableError`."""
        client: Any = AIOKafkaAdminClient(**options.arguments())
        try:
            try:
                await client.start()
            except Exception as error:
                raise opening_error(error, options.bootstrap) from error
            yield cls(client)
        finally:
            await close_client(client.close(), options.close_timeout)

    async def brokers(self) -> int:
        """Return the number of brokers. Raises aiokafka errors."""
        return len((await self._client.describe_cluster())["brokers"])

    async def settings(self, topic: str) -> dict[str, str] | None:
        """Return the settings of a topic; `None` if it does not exist. Does not create it.

        Raises `TopicRefused` without the right to describe it, and aiokafka errors.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = await self._client.describe_configs([resource])
        code, _, _, _, entries = answer.resources[0]
        if code == _MISSING:
            return None
        if code == _NO_RIGHT:
            raise TopicRefused(topic)
        if code:
            raise kafka.for_code(code)(topic)
        return {entry[0]: entry[1] or "" for entry in entries}

    async def partitions(self, topic: str) -> int:
        """Return a topic's number of partitions; 0 if it is missing. Raises aiokafka errors."""
        (found,) = await self._client.describe_topics([topic])
        code = found["error_code"]
        if code and code != _MISSING:
            raise kafka.for_code(code)(topic)
        return len(found["partitions"])

    async def create(self, topic: str, partitions: int, replicas: int) -> None:
        """Create a compacted topic, unless it exists. Raises `TopicRefused` with the reason."""
        made = NewTopic(topic, partitions, replicas, topic_configs={"cleanup.policy": COMPACT})
        try:
            answer = await self._client.create_topics([made])
        except kafka.KafkaError as error:
            raise TopicRefused(text_of(error)) from error
        for _, code, *told in answer.topic_errors:
            if code not in _THERE:
                refused = kafka.for_code(code)(f"{topic}: {told[0] if told else ''}")
                raise TopicRefused(text_of(refused)) from refused


async def committed_pages(
    options: ProducerOptions, partition: TopicPartition
) -> AsyncGenerator[Sequence[Any]]:
    """Yield the committed records of a partition, from its beginning to its current end, in pages.

    Raises aiokafka errors, and `UnavailableError` after three times `request_timeout` without
    progress.
    """
    key = ClientPartition(*partition)
    async with _reader(options) as client:
        client.assign([key])
        patience = PATIENCE * options.request_timeout
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + patience):
                await client.seek_to_beginning(key)
                end = (await client.end_offsets([key]))[key]
                at = await client.position(key)
        except (TimeoutError, kafka.KafkaTimeoutError) as error:
            raise UnavailableError(_NO_ENDS % (partition, patience)) from error
        give_up_at = LOOP_CLOCK.now() + patience
        while at < end:
            if page := await _page(client, key, at):
                yield page
            was, at = at, await client.position(key)
            if at > was:
                give_up_at = LOOP_CLOCK.now() + patience
            elif LOOP_CLOCK.now() >= give_up_at:
                raise UnavailableError(_STUCK % (partition, at, end, patience))


async def _page(client: Any, key: ClientPartition, at: int) -> Sequence[Any]:
    """Return the next records; a header that cannot be decoded is left out."""
    try:
        found: dict[Any, Sequence[Any]] = await client.getmany(
            key, timeout_ms=200, max_records=PAGE
        )
    except Exception as error:
        if not is_undecodable(error):
            raise
        decoded = await decode_singly(client, key, at, PAGE)
        client.seek(key, decoded.next_offset)
        return decoded.records
    return found.get(key, ())


@asynccontextmanager
async def _reader(options: ProducerOptions) -> AsyncIterator[Any]:
    client: Any = AIOKafkaConsumer(
        **options.arguments(),
        isolation_level=COMMITTED,
        auto_offset_reset="none",
        enable_auto_commit=False,
        fetch_max_wait_ms=milliseconds(FETCH_WAIT),
    )
    try:
        try:
            await client.start()
        except Exception as error:
            raise opening_error(error, options.bootstrap) from error
        yield client
    finally:
        await close_client(client.stop(), options.close_timeout)
