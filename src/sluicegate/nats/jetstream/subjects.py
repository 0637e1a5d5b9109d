"""Computes the keys of messages, and divides the subjects of a stream into partitions.

A divided stream maps each subject to `PARTITION.SUBJECT` when a message is stored:
`{{partition(8,1)}}` hashes tokens of the subject, so that a key is always in the same partition.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias, cast

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KeyFunction: TypeAlias = "Callable[[str, Mapping[str, str]], object]"
"""Computes the key of a message from its subject (without the partition) and its headers."""
Key: TypeAlias = "str | int | Sequence[int] | KeyFunction"

_KEY_RULE = (
    'must be "subject", the number of a token of the subject (the first is 1), several of them, '
    '"header:NAME", or a function of the subject and the headers'
)
_PARTITION = re.compile(r"\{\{\s*partition\(\s*(\d+)\s*[,)]", re.IGNORECASE)


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
        tokens: the numbers of the `*` whose tokens form the key; the first is 1.

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
