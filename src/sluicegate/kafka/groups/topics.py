"""The topics of a source: by name, or all that match a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from ..._core import checks
from . import words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_RULE = "a topic's name has 1 to 249 letters, digits, dots, underscores and hyphens"


class KnownTopics(Protocol):
    """A client's knowledge of topics."""

    def topics(self) -> Collection[str]:
        """Return the subscribed topics, or those that match the pattern."""
        ...

    def unknown(self, topics: Iterable[str]) -> Sequence[str]:
        """Return the topics that no broker has reported."""
        ...


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a source: names, or a pattern."""

    names: tuple[str, ...]
    pattern: str | None = None

    @classmethod
    def of(cls, names: Sequence[object], pattern: object) -> Topics:
        """Check the arguments. Raises `ConfigError`."""
        if bool(names) == (pattern is not None):
            raise checks.bad("topics", names, "give the names of topics, or pattern=")
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise checks.bad("topics", name, _RULE)
        if pattern is None:
            return cls(tuple(cast("Sequence[str]", names)))
        if not isinstance(pattern, str):
            raise checks.bad("pattern", pattern, "must be a regular expression, as a string")
        try:
            re.compile(pattern)
        except re.error as error:
            rule = f"must be a regular expression, as a string ({error})"
            raise checks.bad("pattern", pattern, rule) from None
        return cls((), pattern)

    def missing(self, known: KnownTopics) -> str | None:
        """Return which topics cannot be read because they do not exist, as text for operators."""
        if self.pattern is not None:
            return None if known.topics() else words.no_match(self.pattern)
        unknown = known.unknown(self.names)
        return words.no_topic(unknown) if unknown else None

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names)) or f"pattern={self.pattern!r}"
