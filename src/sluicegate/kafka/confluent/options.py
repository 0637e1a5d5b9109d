"""Connection options for Kafka group members on librdkafka, checked before opening.

1. Times are seconds here, and milliseconds in librdkafka.
2. Options of librdkafka pass through under its own names, with dots. Options that Sluicegate sets
   itself are refused, with the argument to use instead. Unknown options are refused by librdkafka
   when it is opened.
3. Values of passed options are never shown: they may be secrets.
4. A draining member does not poll, so librdkafka's maximum time between polls is also the time
   limit of a rebalance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ..._core import checks
from ..._core.errors import ConfigError
from ..._core.extras import need
from ..._core.text import text_of
from ..access import OF_LIBRDKAFKA, of_librdkafka
from ..arguments import (
    LONGEST_HEARTBEAT,
    client_options,
    milliseconds,
    options_of,
)
from ..groups import GroupOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..access import KafkaAccess

GroupProtocol = Literal["cooperative", "consumer"]

_CALLS = "Sluicegate reports errors in explain() and its logs"
_OWNED = {
    **OF_LIBRDKAFKA,
    "auto.commit.interval.ms": "use Consumer(commits=Commits(every=...))",
    "auto.offset.reset": "use start=...",
    "default.topic.config": "pass its options with the others",
    "enable.auto.commit": "positions are stored by the consumer, when their records are settled",
    "enable.auto.offset.store": "positions are stored by the consumer",
    "enable.partition.eof": "Sluicegate uses it to detect the end of a partition",
    "error_cb": _CALLS,
    "group.id": "use group=...",
    "group.instance.id": "use instance=...",
    "group.protocol": "use protocol=...",
    "heartbeat.interval.ms": "it follows session_timeout",
    "logger": 'librdkafka logs to logging.getLogger("librdkafka")',
    "max.poll.interval.ms": "use rebalance_timeout=..., in seconds",
    "on_commit": "use observers of the consumer",
    "partition.assignment.strategy": "use protocol=...",
    "session.timeout.ms": "use session_timeout=..., in seconds",
    "stats_cb": _CALLS,
    "throttle_cb": _CALLS,
}
_NAMED = re.compile(r"configuration property:?\s+\"([^\"]+)\"")
_READING = {"fetch.wait.max.ms": 100, "queued.min.messages": 2_000, "fetch.queue.backoff.ms": 10}
"""The milliseconds for which a broker may delay a fetch, and with it all other partitions read from
that broker; and the number of messages prefetched per partition, which delay those of other
partitions.
"""
_PROTOCOLS: tuple[GroupProtocol, ...] = ("cooperative", "consumer")
_SESSION = 45.0
"""Seconds; the default of librdkafka, and of a broker with the `consumer` protocol."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConfluentOptions(GroupOptions):
    """Options of a consumer group member. Times are in seconds."""

    protocol: GroupProtocol

    @classmethod
    def of(
        cls,
        *,
        access: KafkaAccess,
        protocol: object,
        session_timeout: object,
        client: Mapping[str, object] | None,
        **given: object,
    ) -> ConfluentOptions:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without confluent-kafka."""
        need("confluent_kafka", "kafka-confluent", "ConfluentKafkaSource")
        if protocol == "consumer" and session_timeout is not None:
            rule = 'is a setting of the broker with protocol="consumer"'
            raise checks.bad("session_timeout", session_timeout, rule)
        passed = client_options({**access.client, **options_of(client)}, None, _OWNED, "")
        seconds = session_timeout or _SESSION
        options = cls(
            access=access,
            protocol=checks.choice("protocol", cast("GroupProtocol", protocol), _PROTOCOLS),
            **cls.checked(client=passed, session_timeout=seconds, **given),
        )
        of_librdkafka(access)
        if options.revoke_within <= 0:
            rule = "must be shorter than rebalance_timeout"
            raise checks.bad("commit_timeout", given["commit_timeout"], rule)
        if options.rebalance_timeout < options.session_timeout and protocol == "cooperative":
            rule = "must be at least session_timeout, for librdkafka"
            raise checks.bad("rebalance_timeout", given["rebalance_timeout"], rule)
        return options

    def of_reader(self) -> dict[str, Any]:
        """Return the options of a client that reads assigned partitions and is not a member."""
        client = {**_READING, **self.client}
        return {
            **client,
            **of_librdkafka(self.access),
            "socket.timeout.ms": self.request_timeout_ms + _number(client["fetch.wait.max.ms"]),
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }

    def of_admin(self) -> dict[str, Any]:
        """Return the options of a client that describes topics. It logs nothing: the other clients
        log the same errors.
        """
        return {
            **self.client,
            **of_librdkafka(self.access),
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
        }

    def of_member(self) -> dict[str, Any]:
        """Return the options of a client that is a member and does not read."""
        options = {
            **self.of_reader(),
            "max.poll.interval.ms": milliseconds(self.rebalance_timeout),
        }
        if self.instance is not None:
            options["group.instance.id"] = self.instance
        if self.protocol == "consumer":
            return options | {"group.protocol": "consumer"}
        heartbeat = min(LONGEST_HEARTBEAT, self.session_timeout / 3)
        return options | {
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": milliseconds(self.session_timeout),
            "heartbeat.interval.ms": milliseconds(heartbeat),
        }

    def refusal(self, error: Exception) -> ConfigError:
        """Return the error for options that librdkafka refuses, without their values."""
        told = text_of(error)
        if (named := _NAMED.search(told)) is not None:
            return ConfigError(f"client={{{named[1]!r}: ...}}: librdkafka refuses this option")
        given = {**self.client, **of_librdkafka(self.access)}
        if any(len(value := str(each)) > 1 and value in told for each in given.values()):
            told = type(error).__name__
        return ConfigError(f"librdkafka refuses its options: {told}")


def _number(value: object) -> int:
    """Return an option's number; 0 if it is none, for librdkafka to refuse."""
    told = str(value).strip()
    return int(told) if told.isdecimal() else 0
