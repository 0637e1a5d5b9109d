"""The checked arguments of a JetStream source."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..._core import checks
from .subjects import key_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .subjects import KeyFunction

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
