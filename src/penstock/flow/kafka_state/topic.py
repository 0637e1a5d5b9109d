"""The compacted topic of a state: its settings, its creation, and what it holds.

1. Partition n of the topic holds the changes of partition n of the source's topic. So one topic
   serves one topic of one consumer group.
2. Each transaction ends with a *mark*: the group, the source's topic, the position and a number. The
   position in the group's offsets has the number in its metadata. So a state that is not the one of
   the position is told from one that is: offsets that were reset, a topic that was made anew.
3. A topic that deletes by age or size would lose entries without a word, and is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka  # pyright: ignore[reportMissingTypeStubs]

from ..._clients.kafka.admin import TopicAdmin
from ..._clients.kafka.log_reader import committed_pages
from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.source import TopicPartition
from ..._core.told import text_of
from ..state.store import check_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from ..._clients.kafka.producer_options import ProducerOptions
    from ..._core.source import Position
    from ..state.changes import Stored

MARK_KEY = b"\0penstock"
"""No key of a state has a NUL."""
COMPACT = "compact"
OVERHEAD = 512
"""Bytes of a record and its batch beside key and value, at most."""
REPLICAS = 3
"""Of a topic that is created, if there are as many brokers."""
_LOOK_AGAIN = 0.05
"""Seconds."""
_METADATA = "penstock-state"


@dataclass(frozen=True, slots=True)
class StateMark:
    """What the changes before it belong to."""

    group: str
    topic: str
    """The source's topic."""
    position: int
    number: int
    """Of the transactions of a partition, from 1 on."""

    def encoded(self) -> bytes:
        """The value of its record."""
        fields = {"group": self.group, "topic": self.topic}
        return json.dumps({**fields, "position": self.position, "number": self.number}).encode()

    @classmethod
    def decoded(cls, value: bytes) -> StateMark:
        """The mark of a record. Raises `ValueError`, `KeyError` or `TypeError` for another value."""
        fields = json.loads(value)
        return cls(fields["group"], fields["topic"], fields["position"], fields["number"])

    @property
    def metadata(self) -> str:
        """The metadata of its position."""
        return f"{_METADATA} {self.number}"


def is_of_a_state(metadata: str) -> bool:
    """Whether the metadata of a position is that of a state's transaction."""
    return metadata.startswith(_METADATA)


@dataclass(frozen=True, slots=True)
class FoundState:
    """What a partition of the topic holds, beside the group's position."""

    mark: StateMark | None
    """The last one."""
    has_entries: bool
    position: Position | None


class StateTopic:
    """The topic, as its brokers have it."""

    def __init__(
        self,
        name: str,
        options: ProducerOptions,
        replication_factor: int | None,
        settings: Mapping[str, str],
    ) -> None:
        self.name = name
        self._options = options
        self._replication_factor = replication_factor
        self._settings = {**settings, "cleanup.policy": COMPACT}
        self._partitions = 0
        self._largest = 0
        """The most bytes of a record, as far as known."""

    @property
    def creation(self) -> str:
        """The command that creates the topic, for N partitions."""
        settings = " ".join(f"--config {name}={value}" for name, value in self._settings.items())
        return f"kafka-topics.sh --create --topic {self.name} --partitions N {settings}"

    def check_value(self, key: str, stored: Stored) -> None:
        """Raise `ConfigError` for a value that a record of the topic cannot hold."""
        check_size(key, stored, self._largest - 4 * len(key))

    async def examine(self) -> None:
        """Look at the topic, if it exists. Raises `ConfigError` for one that would lose entries, or
        may not be looked at; and `UnavailableError`.
        """
        async with TopicAdmin.of(self._options) as admin:
            await self._examine(admin)

    async def _examine(self, admin: TopicAdmin) -> bool:
        try:
            settings = await admin.settings(self.name)
        except kafka.TopicAuthorizationFailedError as error:
            rule = "may not be looked at: allow its user DESCRIBE_CONFIGS, DESCRIBE, READ and WRITE on it"
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
        """Make the topic if it is missing, with as many partitions as the source's topic.

        Raises `ConfigError` for partitions of several topics, for a topic with too few partitions,
        and for one that cannot be made; and `UnavailableError`.
        """
        topics = {each.topic for each in partitions}
        if len(topics) > 1:
            rule = f"can hold the state of one topic, and the source has {sorted(topics)}; use a state for each"
            raise bad("topic", self.name, rule)
        needed = max(each.partition for each in partitions) + 1
        if needed <= self._partitions:
            return
        (source,) = topics
        async with TopicAdmin.of(self._options) as admin:
            count = await admin.partitions(source)
            if await self._examine(admin):
                self._partitions = await admin.partitions(self.name)
            else:
                await self._create(admin, max(count, needed))
                self._partitions = max(count, needed)
        if needed > self._partitions:
            rule = (
                f"has {self._partitions} partitions, and {source} has {count}; add some: "
                f"kafka-topics.sh --alter --topic {self.name} --partitions {count}"
            )
            raise bad("topic", self.name, rule)

    async def _create(self, admin: TopicAdmin, partitions: int) -> None:
        try:
            replicas = self._replication_factor or min(REPLICAS, await admin.brokers())
            await admin.create(self.name, partitions, replicas, self._settings)
        except kafka.KafkaError as error:
            command = self.creation.replace("partitions N", f"partitions {partitions}")
            rule = (
                f"is missing, and cannot be created ({text_of(error)}); have it made by: {command}"
            )
            raise bad("topic", self.name, rule) from error
        while not await self._examine(admin):  # the broker learns of it after the controller
            await LOOP_CLOCK.sleep(_LOOK_AGAIN)

    def pages(self, partition: int) -> AsyncGenerator[Sequence[Any]]:
        """All committed records of a partition, a page at a time."""
        return committed_pages(self._options, TopicPartition(self.name, partition))

    def check(self, found: FoundState, group: str, partition: TopicPartition) -> None:
        """Raise `ConfigError` unless this is the state of the group's position in a partition."""
        mark, position = found.mark, found.position
        at = "no position" if position is None else f"the position {position.offset}"
        if mark is None and found.has_entries:
            rule = "has records that no state has written; give the state a topic of its own"
        elif mark is None:
            if position is None or not is_of_a_state(position.metadata):
                return
            rule = (
                f"has no state of {partition}, and the group {group!r} has {at} there, which was stored "
                "with one: this is another topic, or it was made anew. Name the topic of before, or, to "
                "begin anew, delete the group's offsets"
            )
        elif (mark.group, mark.topic) != (group, partition.topic):
            rule = (
                f"has the state of the topic {mark.topic!r} for the group {mark.group!r}, and this is "
                f"{partition.topic!r} for {group!r}; give each a topic of its own"
            )
        elif position is None or position.offset != mark.position:
            rule = (
                f"has the state of {partition} at {mark.position}, and the group {group!r} has {at}: it "
                f"was moved without the state. Set the group's offset of {partition} to {mark.position}, "
                "or, to begin anew, delete both this topic and the group's offsets"
            )
        elif is_of_a_state(position.metadata) and position.metadata != mark.metadata:
            rule = (
                f"has lost the end of the state of {partition}: its last transaction is number "
                f"{mark.number}, and the position was stored with {position.metadata!r}. Restore the "
                "topic, or, to begin anew, delete both this topic and the group's offsets"
            )
        else:
            return
        raise bad("topic", self.name, rule)
