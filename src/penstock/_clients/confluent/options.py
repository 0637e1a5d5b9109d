"""How to connect to Kafka with librdkafka as a member of a group, checked before anything is opened.

1. Times are seconds here, and milliseconds in librdkafka.
2. Options of librdkafka pass through under its own names, with dots. Those that Penstock sets itself
   are refused, with the argument to use instead. librdkafka knows which others there are, and says
   so when it is opened.
3. Values of passed options are never shown: they may be secrets.
4. A member that drains answers no poll, so librdkafka's longest time between polls is also the time
   for a rebalance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from ..._core import checks
from ..._core.errors import ConfigError
from ..._core.text import text_of
from ..kafka_groups.arguments import (
    COMMITTED,
    LONGEST_HEARTBEAT,
    bootstrap_of,
    client_options,
    milliseconds,
    name_of,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

GroupProtocol = Literal["cooperative", "consumer"]

_CALLS = "Penstock reports errors in explain() and its logs"
_OWNED = {
    "auto.commit.interval.ms": "Consumer(commit_every=...) says when positions are stored",
    "auto.offset.reset": "start=... says it",
    "bootstrap.servers": "bootstrap=... says it",
    "default.topic.config": "write its options beside the others",
    "enable.auto.commit": "positions are stored by the consumer, when their records are settled",
    "enable.auto.offset.store": "positions are stored by the consumer",
    "enable.partition.eof": "it tells how far a partition has been read",
    "error_cb": _CALLS,
    "group.id": "group=... says it",
    "group.instance.id": "instance=... says it",
    "group.protocol": "protocol=... says it",
    "heartbeat.interval.ms": "it follows session_timeout",
    "logger": 'lines of librdkafka go to logging.getLogger("librdkafka")',
    "max.poll.interval.ms": "rebalance_timeout=... says it, in seconds",
    "metadata.broker.list": "bootstrap=... says it",
    "on_commit": "the consumer's observers are told of commits",
    "partition.assignment.strategy": "protocol=... says it",
    "session.timeout.ms": "session_timeout=... says it, in seconds",
    "stats_cb": _CALLS,
    "throttle_cb": _CALLS,
}
_LEVEL = "isolation.level"
_NAMED = re.compile(r"configuration property:?\s+\"([^\"]+)\"")
_READING = {"fetch.wait.max.ms": 100, "queued.min.messages": 2_000, "fetch.queue.backoff.ms": 10}
"""Milliseconds that a broker may hold a fetch back, and with it the other partitions that are read
from that broker; and messages that are read ahead of each partition, behind which those of other
partitions wait.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GroupOptions:
    """A member of a consumer group. Times are seconds."""

    bootstrap: str
    group: str
    protocol: GroupProtocol
    instance: str | None
    session_timeout: float
    rebalance_timeout: float
    commit_timeout: float
    stop_timeout: float
    client: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        *,
        bootstrap: object,
        group: object,
        protocol: object,
        instance: object,
        session_timeout: object,
        rebalance_timeout: object,
        commit_timeout: object,
        stop_timeout: object,
        client: Mapping[str, object] | None,
    ) -> GroupOptions:
        """Check the arguments. Raises `ConfigError`."""
        if protocol == "consumer" and session_timeout is not None:
            rule = 'is a setting of the broker with protocol="consumer"'
            raise checks.bad("session_timeout", session_timeout, rule)
        options = cls(
            bootstrap=bootstrap_of(bootstrap),
            group=name_of("group", group),
            protocol=checks.choice("protocol", cast("GroupProtocol", protocol), _PROTOCOLS),
            instance=None if instance is None else name_of("instance", instance),
            session_timeout=seconds_of("session_timeout", session_timeout or _SESSION),
            rebalance_timeout=seconds_of("rebalance_timeout", rebalance_timeout),
            commit_timeout=seconds_of("commit_timeout", commit_timeout),
            stop_timeout=seconds_of("stop_timeout", stop_timeout),
            client=client_options(_mapping(client), None, _OWNED, ""),
        )
        if options.revoke_within <= 0:
            raise checks.bad(
                "commit_timeout", commit_timeout, "must be shorter than rebalance_timeout"
            )
        if options.rebalance_timeout < options.session_timeout and protocol == "cooperative":
            rule = "must be at least session_timeout, for librdkafka"
            raise checks.bad("rebalance_timeout", rebalance_timeout, rule)
        return options

    @property
    def revoke_within(self) -> float:
        """Seconds that a drain may take in a rebalance, with time left for the commit after it."""
        return self.rebalance_timeout - self.commit_timeout

    def committed_only(self) -> GroupOptions:
        """The same, reading committed records only. Raises `ConfigError` if the options differ."""
        level = self.client.get(_LEVEL, COMMITTED)
        if level != COMMITTED:
            rule = f"must be {COMMITTED!r} in a transaction, which moves no aborted records"
            raise checks.bad(_LEVEL, level, rule)
        return replace(self, client={**self.client, _LEVEL: COMMITTED})

    def of_reader(self) -> dict[str, Any]:
        """The options of a client that reads assigned partitions, and is no member."""
        return {
            **_READING,
            **self.client,
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }

    def of_member(self) -> dict[str, Any]:
        """The options of a client that is a member, and reads nothing."""
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

    def refused(self, error: Exception) -> ConfigError:
        """The error for options that librdkafka refuses, without their values."""
        told = text_of(error)
        if (named := _NAMED.search(told)) is not None:
            return ConfigError(f"client={{{named[1]!r}: ...}}: librdkafka refuses this option")
        if any(len(value := str(each)) > 1 and value in told for each in self.client.values()):
            told = type(error).__name__
        return ConfigError(f"librdkafka refuses its options: {told}")

    def __repr__(self) -> str:
        return f"GroupOptions(bootstrap={self.bootstrap!r}, group={self.group!r})"


_PROTOCOLS: tuple[GroupProtocol, ...] = ("cooperative", "consumer")
_SESSION = 45.0
"""Seconds; the default of librdkafka, and of a broker with the other protocol."""


def _mapping(client: object) -> Mapping[str, object]:
    rule = "must be a mapping of librdkafka's options, by their names"
    if client is None:
        return {}
    named = cast("dict[object, object]", client)
    if not isinstance(client, dict) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"client=...: {rule}")
    return cast("Mapping[str, object]", named)
