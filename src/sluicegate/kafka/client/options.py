"""Connection options for Kafka group members, checked before opening.

1. Times are seconds here, and milliseconds in aiokafka.
2. Options of aiokafka pass through under its own names: TLS, SASL, sizes of fetches. Options that
   Sluicegate sets itself are refused, with the argument to use instead.
3. Values of passed options are never shown: they may be secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.extras import need
from ..groups.arguments import (
    ANSWER_WITHIN,
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

_OWNED = {
    "auto_commit_interval_ms": "use Consumer(commit_every=...)",
    "auto_offset_reset": "use start=...",
    "bootstrap_servers": "use bootstrap=...",
    "consumer_timeout_ms": "records are fetched only on request of the consumer",
    "enable_auto_commit": "positions are stored by the consumer, when their records are settled",
    "group_id": "use group=...",
    "group_instance_id": "use instance=...",
    "heartbeat_interval_ms": "it follows session_timeout",
    "key_deserializer": "Consumer(steps=...) decodes",
    "loop": "the running loop is used",
    "max_poll_interval_ms": "use max_poll_interval=..., in seconds",
    "max_poll_records": "use Consumer(fetch_max=...)",
    "rebalance_timeout_ms": "use rebalance_timeout=..., in seconds",
    "session_timeout_ms": "use session_timeout=..., in seconds",
    "value_deserializer": "Consumer(steps=...) decodes",
}
FETCH_WAIT = 0.1
"""Seconds for which a broker may delay a fetch until new records arrive. Meanwhile aiokafka sends
it no other fetch: a partition with records waits for the partitions without any.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemberOptions:
    """Options of a consumer group member. Times are in seconds."""

    bootstrap: str
    group: str
    instance: str | None
    session_timeout: float
    rebalance_timeout: float
    max_poll_interval: float
    commit_timeout: float
    stop_timeout: float
    client: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        *,
        bootstrap: object,
        group: object,
        instance: object,
        session_timeout: object,
        rebalance_timeout: object,
        max_poll_interval: object,
        commit_timeout: object,
        stop_timeout: object,
        client: Mapping[str, object],
    ) -> MemberOptions:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without aiokafka."""
        need("aiokafka", "kafka", "KafkaSource")
        from .insides import CONSUMER_OPTIONS

        of = "KafkaSource, nor of AIOKafkaConsumer"
        options = cls(
            bootstrap=bootstrap_of(bootstrap),
            group=name_of("group", group),
            instance=None if instance is None else name_of("instance", instance),
            session_timeout=seconds_of("session_timeout", session_timeout),
            rebalance_timeout=seconds_of("rebalance_timeout", rebalance_timeout),
            max_poll_interval=seconds_of("max_poll_interval", max_poll_interval),
            commit_timeout=seconds_of("commit_timeout", commit_timeout),
            stop_timeout=seconds_of("stop_timeout", stop_timeout),
            client=client_options(client, CONSUMER_OPTIONS, _OWNED, of),
        )
        if options.revoke_within <= 0:
            rule = "must be shorter than rebalance_timeout and max_poll_interval"
            raise checks.bad("commit_timeout", commit_timeout, rule)
        return options

    @property
    def revoke_within(self) -> float:
        """Time limit of a drain in a rebalance, in seconds; leaves time for the commit after it."""
        return min(self.rebalance_timeout, self.max_poll_interval) - self.commit_timeout

    def committed_only(self) -> MemberOptions:
        """Return the same options for reading only committed records. Raises `ConfigError`."""
        level = self.client.get("isolation_level", COMMITTED)
        if level != COMMITTED:
            rule = (
                f"must be {COMMITTED!r} in a transactional flow, which never moves aborted records"
            )
            raise checks.bad("isolation_level", level, rule)
        return replace(self, client={**self.client, "isolation_level": COMMITTED})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for aiokafka's consumer."""
        client = {"fetch_max_wait_ms": milliseconds(FETCH_WAIT), **self.client}
        return {
            "request_timeout_ms": milliseconds(ANSWER_WITHIN) + client["fetch_max_wait_ms"],
            **client,
            "bootstrap_servers": self.bootstrap,
            "group_id": self.group,
            "group_instance_id": self.instance,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "session_timeout_ms": milliseconds(self.session_timeout),
            "heartbeat_interval_ms": milliseconds(min(LONGEST_HEARTBEAT, self.session_timeout / 3)),
            "rebalance_timeout_ms": milliseconds(self.rebalance_timeout),
            "max_poll_interval_ms": milliseconds(self.max_poll_interval),
        }

    def __repr__(self) -> str:
        return f"MemberOptions(bootstrap={self.bootstrap!r}, group={self.group!r})"
