"""Connection options for Kafka members and producers on aiokafka, checked before opening.

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
from ..access import OF_AIOKAFKA, ClientOptions, of_aiokafka
from ..arguments import (
    COMMITTED,
    LONGEST_HEARTBEAT,
    client_options,
    milliseconds,
    options_of,
    seconds_of,
)
from ..groups import GroupOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.addresses import Options
    from ..access import KafkaAccess

_OF_MEMBER = {
    **OF_AIOKAFKA,
    "auto_commit_interval_ms": "use Consumer(commits=Commits(every=...))",
    "auto_offset_reset": "use start=...",
    "consumer_timeout_ms": "records are fetched only on request of the consumer",
    "enable_auto_commit": "positions are stored by the consumer, when their records are settled",
    "group_id": "use group=...",
    "group_instance_id": "use instance=...",
    "heartbeat_interval_ms": "it follows session_timeout",
    "key_deserializer": "Consumer(steps=...) decodes",
    "loop": "the running loop is used",
    "max_poll_interval_ms": "use max_poll_interval=..., in seconds",
    "max_poll_records": "use Consumer(in_flight=InFlight(fetch_max=...))",
    "rebalance_timeout_ms": "use rebalance_timeout=..., in seconds",
    "session_timeout_ms": "use session_timeout=..., in seconds",
    "value_deserializer": "Consumer(steps=...) decodes",
}
FETCH_WAIT = 0.1
"""Seconds for which a broker may delay a fetch until new records arrive. Meanwhile aiokafka sends
it no other fetch: a partition with records waits for the partitions without any.
"""
_OF_PRODUCER = {
    **OF_AIOKAFKA,
    "acks": "every record is acknowledged by all replicas in sync",
    "api_version": "it is negotiated with each broker",
    "compression_type": "use compression=...",
    "enable_idempotence": "every producer is idempotent",
    "key_serializer": "key=... is also a function of an item",
    "linger_ms": "the batcher decides when a batch is complete: Limits(max_delay=...)",
    "loop": "the running loop is used",
    "max_batch_size": "use max_batch_bytes=...",
    "max_request_size": "use max_batch_bytes=...",
    "partitioner": "partition=... is a function of an item",
    "retries": "a Retry around the sink retries",
    "transaction_timeout_ms": "use transaction_timeout=..., in seconds",
    "transactional_id": "flow.transaction(source, sink, ...) makes one for each claim",
    "value_serializer": "value=... is a function of an item",
}
_CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The codes of Kafka's protocol."""
MAX_BATCH_BYTES = 1_000_000
"""Below the 1,048,588 bytes that a broker accepts by default (`message.max.bytes`)."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemberOptions(GroupOptions):
    """Options of a consumer group member. Times are in seconds."""

    max_poll_interval: float

    @classmethod
    def of(
        cls, *, access: KafkaAccess, client: Mapping[str, object] | None, **given: object
    ) -> MemberOptions:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without aiokafka."""
        need("aiokafka", "kafka", "KafkaSource")
        from .internals import CONSUMER_OPTIONS

        of = "KafkaSource, nor of AIOKafkaConsumer"
        passed = {**access.client, **options_of(client)}
        checked = client_options(passed, CONSUMER_OPTIONS, _OF_MEMBER, of)
        options = cls(access=access, **cls.checked(client=checked, **given))
        if options.revoke_within <= 0:
            rule = "must be shorter than rebalance_timeout and max_poll_interval"
            raise checks.bad("commit_timeout", given["commit_timeout"], rule)
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
            **client,
            **_with_context(of_aiokafka(self.access)),
            "request_timeout_ms": self.request_timeout_ms + client["fetch_max_wait_ms"],
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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerOptions(ClientOptions):
    """Options of a producer. Times are in seconds."""

    compression: str | None
    max_batch_bytes: int
    transaction_timeout: float
    client: Options

    @classmethod
    def of(
        cls,
        *,
        access: KafkaAccess,
        compression: str | None,
        max_batch_bytes: int,
        transaction_timeout: object,
    ) -> ProducerOptions:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without aiokafka."""
        need("aiokafka", "kafka", "KafkaSink")
        from .internals import CLIENT_OPTIONS

        return cls(
            access=access,
            compression=_codec(compression),
            max_batch_bytes=checks.count("max_batch_bytes", max_batch_bytes),
            transaction_timeout=seconds_of("transaction_timeout", transaction_timeout),
            client=client_options(
                access.client, CLIENT_OPTIONS, _OF_PRODUCER, "KafkaSink, nor of aiokafka's client"
            ),
        )

    @property
    def codec(self) -> int:
        """The code of the compression in a batch's attributes."""
        return 0 if self.compression is None else _CODECS[self.compression]

    @property
    def transaction_timeout_ms(self) -> int:
        return milliseconds(self.transaction_timeout)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for aiokafka's client; calls an `ssl_context` that is a function."""
        return {
            **self.client,
            **_with_context(of_aiokafka(self.access)),
            "bootstrap_servers": self.bootstrap,
            "request_timeout_ms": self.request_timeout_ms,
        }

    def __repr__(self) -> str:
        return f"ProducerOptions(bootstrap={self.bootstrap!r})"


def _with_context(options: dict[str, Any]) -> dict[str, Any]:
    if callable(context := options.get("ssl_context")):
        options["ssl_context"] = context()
    return options


def _codec(compression: str | None) -> str | None:
    if compression is None:
        return None
    checks.choice("compression", compression, tuple(_CODECS))
    if compression != "gzip":
        need("cramjam", "kafka", f"compression={compression!r}")
    return compression
