"""Kafka arguments, checked before opening."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ..._core import addresses, checks
from ..._core.addresses import Options
from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,/:@]+):\d{1,5}")

COMMITTED = "read_committed"
LONGEST_HEARTBEAT = 3.0
"""Seconds; the default of Kafka's own client."""
ANSWER_WITHIN = 10.0
"""Seconds for the answer to a request that a broker does not delay."""


def seconds_of(name: str, value: object) -> float:
    """Check a duration in seconds. Raises `ConfigError`."""
    return checks.seconds(name, value, usual=checks.LONG_TIMEOUT)


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds, at least 1."""
    return max(1, round(seconds * 1000))


def bootstrap_of(value: object) -> str:
    """Check the addresses; return them separated by commas. Raises `ConfigError`."""
    rule = 'must be "host:port", several of these separated by commas, or a list of them'
    if value is None or value in ("", [], ()):
        raise checks.bad("bootstrap", value, f"{rule}; {addresses.UNSET}")
    given = cast("object", value.split(",") if isinstance(value, str) else value)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise checks.bad("bootstrap", value, rule)
    listed = cast("Sequence[object]", given)
    given_addresses = [each.strip() if isinstance(each, str) else "" for each in listed]
    if not all(_ADDRESS.fullmatch(each) for each in given_addresses):
        raise ConfigError(f"bootstrap={addresses.shown(value)}: {rule}")
    return ",".join(given_addresses)


def name_of(name: str, value: object) -> str:
    """Check the name of a group or a member. Raises `ConfigError`."""
    if not isinstance(value, str) or not value.strip():
        raise checks.bad(name, value, "must be a non-empty string")
    return value


def client_options(
    given: Mapping[str, object], known: Collection[str] | None, owned: Mapping[str, str], of: str
) -> Options:
    """Return the options to pass to a client, by its names. Raises `ConfigError` for other names.

    `known` are all option names of the client; with `None` the client itself checks them.
    """
    for name in given:
        if name in owned:
            raise ConfigError(f"{name}=...: is set by Sluicegate: {owned[name]}")
        if known is not None and name not in known:
            raise ConfigError(f"{name}=...: is not an option of {of}")
    return Options(given)
