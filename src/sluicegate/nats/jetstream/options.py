"""The checked arguments of a JetStream source: what to read, the keys of messages, and partitions.

A divided stream maps each subject to `PARTITION.SUBJECT` when a message is stored:
`{{partition(8,1)}}` hashes tokens of the subject, so that a key is always in the same partition.
"""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Start: TypeAlias = "Literal['earliest', 'latest'] | int | datetime"
_START_RULE = (
    'must be "earliest", "latest", a sequence number of at least 1, or a datetime with a time zone'
)
_NAME = re.compile(r"[^\s.*>/\\\0]{1,200}")
_NAME_RULE = "must be text without spaces, dots, *, >, slashes and NUL"
_SUBJECT = re.compile(r"[^\s.\0]+(\.[^\s.\0]+)*")
_SUBJECT_RULE = "must be subjects: tokens with dots between them"
MOST_PARTITIONS = 1_000
SHORTEST_ACK_WAIT = 1.0
_KEY_RULE = (
    'must be "subject", the number of a token of the subject (the first is 1), several of them, '
    '"header:NAME", or a function of the subject and the headers'
)
_PARTITION = re.compile(r"\{\{\s*partition\(\s*(\d+)\s*[,)]", re.IGNORECASE)
KeyFunction: TypeAlias = "Callable[[str, Mapping[str, str]], object]"
"""Computes the key of a message from its subject (without the partition) and its headers."""
Key: TypeAlias = "str | int | Sequence[int] | KeyFunction"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The messages to read, the consumers to use, and the limits."""

    stream: str
    durable: str
    member: str
    subjects: tuple[str, ...]
    partitions: int | None
    key: KeyFunction
    start: Start
    ack_wait: float
    max_pending: int
    prefetch: int
    double_ack: bool
    create: bool
    domain: str | None

    @classmethod
    def of(
        cls,
        stream: str,
        *,
        durable: str,
        member: str | None,
        subjects: str | Sequence[str] | None,
        partitions: int | None,
        key: object,
        start: object,
        ack_wait: object,
        max_pending: int,
        prefetch: int,
        double_ack: bool,
        create: bool,
        domain: str | None,
    ) -> ReadOptions:
        """Check the arguments. Raises `ConfigError`."""
        given = _subjects(subjects)
        if partitions is not None:
            checks.count("partitions", partitions)
            if partitions > MOST_PARTITIONS:
                raise checks.bad("partitions", partitions, f"must be at most {MOST_PARTITIONS}")
            if given:
                rule = "cannot be given with partitions=: each partition has its own filter"
                raise checks.bad("subjects", subjects, rule)
        wait = checks.seconds("ack_wait", ack_wait, usual=checks.LONG_TIMEOUT)
        if wait < SHORTEST_ACK_WAIT:
            raise checks.bad(
                "ack_wait", ack_wait, "must be at least 1 s: it has to be extended in time"
            )
        checks.count("prefetch", prefetch)
        checks.count("max_pending", max_pending)
        return cls(
            stream=_name("stream", stream),
            durable=_name("durable", durable),
            member=_member() if member is None else _name("member", member),
            subjects=given,
            partitions=partitions,
            key=key_function(key),
            start=_start(start),
            ack_wait=wait,
            max_pending=max_pending,
            prefetch=min(prefetch, max_pending),
            double_ack=checks.flag("double_ack", double_ack),
            create=checks.flag("create", create),
            domain=None if domain is None else _name("domain", domain),
        )

    @property
    def count(self) -> int:
        """The number of partitions; 1 for a stream that is not divided."""
        return self.partitions or 1

    def consumer(self, partition: int) -> str:
        """Return the name of a partition's durable consumer."""
        return self.durable if self.partitions is None else f"{self.durable}-{partition}"

    def filters(self, partition: int) -> list[str]:
        """Return the subjects of a partition; none for the whole stream."""
        return [*self.subjects] if self.partitions is None else [f"{partition}.>"]

    def where(self, partition: int, first: int | None = None) -> dict[str, object]:
        """Return the start settings of a new consumer: the sequence number `first`, or `start`."""
        start = self.start if first is None else first
        if start == "earliest":
            return {"deliver_policy": "all"}
        if start == "latest":
            return {"deliver_policy": "new"}
        if isinstance(start, int):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        assert isinstance(start, datetime)
        told = start.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return {"deliver_policy": "by_start_time", "opt_start_time": told}


def _name(argument: str, value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise checks.bad(argument, value, _NAME_RULE)
    return value


def _subjects(subjects: object) -> tuple[str, ...]:
    given = () if subjects is None else (subjects,) if isinstance(subjects, str) else subjects
    if not isinstance(given, (list, tuple)):
        raise checks.bad("subjects", subjects, _SUBJECT_RULE)
    listed = cast("Sequence[object]", given)
    for subject in listed:
        if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
            raise checks.bad("subjects", subjects, _SUBJECT_RULE)
    return tuple(map(str, listed))


def _start(start: object) -> Start:
    if start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    if isinstance(start, datetime) and start.utcoffset() is not None:
        return start
    if isinstance(start, int) and not isinstance(start, bool) and start >= 1:
        return start
    raise checks.bad("start", start, _START_RULE)


def _member() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:100]
    return f"{host}-{secrets.token_hex(6)}"


def key_function(key: object) -> KeyFunction:
    """Check the argument `key`. Raises `ConfigError`."""
    if key == "subject":
        return lambda subject, _: subject
    if isinstance(key, str) and key.startswith("header:") and len(key) > len("header:"):
        name = key.removeprefix("header:")
        return lambda _, headers: headers.get(name)
    if isinstance(key, int) and not isinstance(key, bool):
        return _of_tokens((checks.count("key", key),))
    if isinstance(key, (tuple, list)) and key:
        return _of_tokens([checks.count("key", each) for each in cast("Sequence[object]", key)])
    return cast("KeyFunction", checks.function("key", cast("object", key), _KEY_RULE, takes=2))


def _of_tokens(numbers: Sequence[int]) -> KeyFunction:
    def key(subject: str, _: Mapping[str, str]) -> object:
        tokens = subject.split(".")
        return ".".join([tokens[at - 1] if at <= len(tokens) else "" for at in numbers])

    return key


def partitioned(subject: str, partitions: int, tokens: Sequence[int] = (1,)) -> tuple[str, str]:
    """Build the source and the destination of the `subject_transform` that divides a stream.

        source, destination = partitioned("orders.*", 8)
        StreamConfig(..., subject_transform=SubjectTransform(src=source, dest=destination))

    Args:
        subject: the subjects of the stream, with `*` for each variable token.
        partitions: the number of partitions, as in `JetStreamSource(partitions=)`. Do not change it
            while messages are stored: keys would move to other partitions.
        tokens: the numbers of the `*` whose tokens form the key; the first is 1, and the default.

    Raises `ConfigError` for a bad argument.
    """
    parts = checks.text("subject", subject).split(".")
    stars = parts.count("*")
    if ">" in parts or not stars:
        raise checks.bad("subject", subject, "must have a * for each variable token, and no >")
    checks.count("partitions", partitions)
    for token in tokens:
        if checks.count("tokens", token) > stars:
            raise checks.bad("tokens", tokens, f"{subject!r} has only {stars} *")
    if not tokens:
        raise checks.bad("tokens", tokens, "must name at least one *")
    place = 0
    for at, part in enumerate(parts):
        if part == "*":
            place += 1
            parts[at] = f"{{{{wildcard({place})}}}}"
    function = f"{{{{partition({partitions},{','.join(map(str, tokens))})}}}}"
    return subject, ".".join([function, *parts])


def partitions_of(destination: str) -> int | None:
    """Return the number of partitions in the destination of a transform, if it begins with them."""
    found = _PARTITION.match(destination)
    return int(found[1]) if found else None
