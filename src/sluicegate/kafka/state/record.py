"""A record to be forwarded to a topic of Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core import checks
from ..sink.records import TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record for `EventContext.forward` of a consumer whose state is a `KafkaState`.

    Args:
        topic: an existing topic. If it does not exist, no state or position of the partition is
            stored until it does.
        value: bytes, or a string, which is sent as UTF-8; `None` is a tombstone and needs a key.
        key: like `value`. Records with the same key go to the same partition, as with Kafka's own
            clients.
        headers: pairs of a name and bytes.
        partition: number of the partition; default: determined by the key, or any.

    Raises `ConfigError` for a bad argument.
    """

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    partition: int | None = None

    def __post_init__(self) -> None:
        if not TOPIC.fullmatch(checks.text("topic", self.topic)):
            rule = "must be 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"
            raise checks.bad("topic", self.topic, rule)
        for name, part in (("value", self.value), ("key", self.key)):
            _check_part(name, part)
        if self.value is None and self.key is None:
            raise checks.bad("key", None, "must be given for a record without a value, a tombstone")
        for header in self.headers:
            if not _is_header(header):
                rule = "must be pairs of a non-empty name and bytes"
                raise checks.bad("headers", header, rule)
        if self.partition is not None:
            checks.count("partition", self.partition, least=0)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.value or b"") + len(self.key or b"")


def _check_part(name: str, part: object) -> None:
    if part is not None and not isinstance(part, (bytes, str)):
        raise checks.bad(name, part, "must be bytes, a string or None")
    if isinstance(part, str) and not part.isascii():
        try:
            part.encode()
        except UnicodeEncodeError:
            raise checks.bad(name, part, "must be text that can be encoded as UTF-8") from None


def _is_header(header: object) -> bool:
    match header:
        case (str(name), bytes()):
            return bool(name)
        case _:
            return False
