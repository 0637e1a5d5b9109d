"""What a source reads: topics by their names, or all that match a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._clients.kafka.session import Session

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_RULE = "a topic's name has 1 to 249 letters, digits, dots, underscores and hyphens"


@dataclass(frozen=True, slots=True)
class Topics:
    """Names, or a pattern."""

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
            raise checks.bad("pattern", pattern, "must be a regular expression, as a text")
        try:
            re.compile(pattern)
        except re.error as error:
            rule = f"must be a regular expression, as a text ({error})"
            raise checks.bad("pattern", pattern, rule) from None
        return cls((), pattern)

    def missing(self, session: Session) -> str | None:
        """What cannot be read because it does not exist, in words for operators."""
        if self.pattern is not None:
            return None if session.topics() else f"no topic matches {self.pattern!r}"
        unknown = session.unknown(self.names)
        if not unknown:
            return None
        named = ", ".join(map(repr, unknown))
        return f"the topic {named} does not exist, or may not be described"

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names)) or f"pattern={self.pattern!r}"
