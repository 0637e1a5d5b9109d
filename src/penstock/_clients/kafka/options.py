"""How to connect to Kafka as a member of a group, checked before anything is opened.

1. Times are seconds here, and milliseconds in aiokafka.
2. Options of aiokafka pass through under its own names: TLS, SASL, sizes of fetches. Those that
   Penstock sets itself are refused, with the argument to use instead.
3. Values of passed options are never shown: they may be secrets.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from aiokafka import AIOKafkaConsumer

from ..._core import checks
from ..._core.errors import ConfigError
from ..._core.options import Options

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,/:@]+):\d{1,5}")
_OWNED = {
    "auto_commit_interval_ms": "Consumer(commit_every=...) says when positions are stored",
    "auto_offset_reset": "start=... says it",
    "bootstrap_servers": "bootstrap=... says it",
    "consumer_timeout_ms": "records are fetched for the consumer alone",
    "enable_auto_commit": "positions are stored by the consumer, when their records are settled",
    "group_id": "group=... says it",
    "group_instance_id": "instance=... says it",
    "heartbeat_interval_ms": "it follows session_timeout",
    "key_deserializer": "Consumer(steps=...) decodes",
    "loop": "the running loop is used",
    "max_poll_interval_ms": "max_poll_interval=... says it, in seconds",
    "max_poll_records": "Consumer(fetch_max=...) says it",
    "rebalance_timeout_ms": "rebalance_timeout=... says it, in seconds",
    "session_timeout_ms": "session_timeout=... says it, in seconds",
    "value_deserializer": "Consumer(steps=...) decodes",
}
_KNOWN = frozenset(inspect.signature(AIOKafkaConsumer).parameters)
_COMMITTED = "read_committed"
LONGEST_HEARTBEAT = 3.0
"""Seconds; the default of Kafka's own client."""
FETCH_WAIT = 0.1
"""Seconds that a broker may hold a fetch back for new records. aiokafka sends no other fetch to it
meanwhile: a partition that has been read waits for one of the partitions that have nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemberOptions:
    """A member of a consumer group. Times are seconds."""

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
        """Check the arguments. Raises `ConfigError`."""
        options = cls(
            bootstrap=bootstrap_of(bootstrap),
            group=_name("group", group),
            instance=None if instance is None else _name("instance", instance),
            session_timeout=seconds_of("session_timeout", session_timeout),
            rebalance_timeout=seconds_of("rebalance_timeout", rebalance_timeout),
            max_poll_interval=seconds_of("max_poll_interval", max_poll_interval),
            commit_timeout=seconds_of("commit_timeout", commit_timeout),
            stop_timeout=seconds_of("stop_timeout", stop_timeout),
            client=client_options(client, _KNOWN, _OWNED, "KafkaSource, nor of AIOKafkaConsumer"),
        )
        if options.revoke_within <= 0:
            rule = "must be shorter than rebalance_timeout and max_poll_interval"
            raise checks.bad("commit_timeout", commit_timeout, rule)
        return options

    @property
    def revoke_within(self) -> float:
        """Seconds that a drain may take in a rebalance, with time left for the commit after it."""
        return min(self.rebalance_timeout, self.max_poll_interval) - self.commit_timeout

    def committed_only(self) -> MemberOptions:
        """The same, reading committed records only. Raises `ConfigError` if the options differ."""
        level = self.client.get("isolation_level", _COMMITTED)
        if level != _COMMITTED:
            rule = f"must be {_COMMITTED!r} in a transaction, which moves no aborted records"
            raise checks.bad("isolation_level", level, rule)
        return replace(self, client={**self.client, "isolation_level": _COMMITTED})

    def arguments(self) -> dict[str, Any]:
        """The arguments of aiokafka's consumer."""
        return {
            "fetch_max_wait_ms": milliseconds(FETCH_WAIT),
            **self.client,
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


def seconds_of(name: str, value: object) -> float:
    """A duration in seconds, checked. Raises `ConfigError`."""
    return checks.seconds(name, value, usual=checks.LONG_TIMEOUT)


def milliseconds(seconds: float) -> int:
    """Seconds as whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def bootstrap_of(value: object) -> str:
    """The addresses, checked, separated by commas. Raises `ConfigError`."""
    rule = 'must be "host:port", several of them with commas, or a list of them'
    given = cast("object", value.split(",") if isinstance(value, str) else value)
    if not isinstance(given, Sequence) or isinstance(given, bytes) or not given:
        raise checks.bad("bootstrap", value, rule)
    listed = cast("Sequence[object]", given)
    addresses = [each.strip() if isinstance(each, str) else "" for each in listed]
    if not all(_ADDRESS.fullmatch(each) for each in addresses):
        raise checks.bad("bootstrap", value, rule)
    return ",".join(addresses)


def _name(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise checks.bad(name, value, "must be a text, and not empty")
    return value


def client_options(
    given: Mapping[str, object], known: Collection[str], owned: Mapping[str, str], of: str
) -> Options:
    """The options to pass through to aiokafka, by its names. Raises `ConfigError` for any other."""
    for name in given:
        if name in owned:
            raise ConfigError(f"{name}=...: is set by Penstock: {owned[name]}")
        if name not in known:
            raise ConfigError(f"{name}=...: is not an option of {of}")
    return Options(given)
