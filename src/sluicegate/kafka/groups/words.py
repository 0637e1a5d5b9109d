"""Messages for operators: why a Kafka group cannot be read, and the remedy; no option values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def unreachable(bootstrap: str) -> str:
    """Say that no broker answers."""
    return f"no broker can be reached at {bootstrap}"


def refused_login(bootstrap: str, how: str) -> str:
    """Say that a broker does not accept the user, password or certificate."""
    return f"{bootstrap} has refused the login ({how})"


def no_right_to_topics(topics: Iterable[str]) -> str:
    """Say that the user may not read topics."""
    named = ", ".join(map(repr, sorted(topics)))
    told = f"the topic {named}" if named else "a topic"
    return f"not authorized to read {told}; it needs READ and DESCRIBE"


def no_right_to_group(group: str) -> str:
    """Say that the user may not use the group."""
    return f"not authorized to use the group {group!r}; it needs READ"


def other_protocol(group: str) -> str:
    """Say that the group's members use different protocols."""
    return (
        f"the group {group!r} has members with another protocol or assignor; "
        "use another group, or stop them first"
    )


def bad_session_timeout(seconds: float) -> str:
    """Say that the broker does not allow this session timeout."""
    return (
        f"the broker does not allow session_timeout={seconds:g}; see its "
        "group.min.session.timeout.ms and group.max.session.timeout.ms"
    )


def bad_topic_name(told: str) -> str:
    """Say that the broker does not accept a topic name."""
    return f"the broker does not allow a topic's name: {told}"


def no_partition(told: str) -> str:
    """Say that a partition is missing or hidden."""
    return f"a partition does not exist, or may not be described: {told}"


def no_topic(topics: Iterable[str]) -> str:
    """Say that topics are missing or hidden."""
    named = ", ".join(map(repr, topics))
    return f"the topic {named} does not exist, or may not be described"


def no_match(pattern: str) -> str:
    """Say that no topic matches the pattern."""
    return f"no topic matches {pattern!r}"


def same_instance(instance: str) -> str:
    """Return the probable cause of a fenced member, as a question."""
    return f"does another process use instance={instance!r}?"


def refused_instance(instance: str) -> str:
    """Say that a static member is fenced."""
    return f"the group has refused this member: {same_instance(instance)}"


def lost_often(instance: str | None, seconds: float) -> str:
    """Say that the broker removes this member repeatedly."""
    why = (
        f"is the event loop blocked for more than {seconds:g} s at a time?"
        if instance is None
        else same_instance(instance)
    )
    return f"the partitions have been lost repeatedly: {why}"
