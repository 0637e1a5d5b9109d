"""A selection of streams of a log: all, by category, or by name. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ...._core import checks
from ...._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = 'must be the name of a stream, or several; * in a name matches any text, as in "order-*"'
_ESCAPED = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_", "*": "%"})


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """A selection of streams. Construct it with `of`."""

    category: str | None = None
    streams: tuple[str, ...] = ()
    """Names and wildcards, sorted; if empty, all streams, or all of the category."""

    @classmethod
    def of(
        cls, category: str | None = None, streams: str | Iterable[str] | None = None
    ) -> StreamSelection:
        """Check the arguments. Raises `ConfigError`."""
        if category is not None:
            if streams is not None:
                raise bad("streams", streams, "must not be given beside category=")
            if "-" in checks.text("category", category):
                rule = (
                    f'must be the part of a name before the first "-"; or give streams={category!r}'
                )
                raise bad("category", category, rule)
            return cls(category)
        if streams is None:
            return cls()
        given = (streams,) if isinstance(streams, str) else cast("object", streams)
        if not isinstance(given, Iterable):
            raise bad("streams", streams, _NAMES)
        names = list(cast("Iterable[object]", given))
        if not names or not all(
            isinstance(name, str) and name and "\0" not in name for name in names
        ):
            raise bad("streams", streams, _NAMES)
        return cls(streams=tuple(sorted(set(cast("list[str]", names)))))

    @classmethod
    def parsed(cls, text: str) -> StreamSelection:
        """Parse the text of a selection. Raises `ValueError`."""
        found = json.loads(text)
        return cls(found.get("category"), tuple(found.get("streams", ())))

    @property
    def text(self) -> str:
        """The form stored in a subscription: equal for equal selections, read by SQL functions."""
        if self.category is not None:
            return json.dumps({"category": self.category}, ensure_ascii=False)
        return json.dumps(
            {"streams": list(self.streams)} if self.streams else {}, ensure_ascii=False
        )

    @property
    def parameters(self) -> tuple[list[str], ...]:
        """The values of the parameters of `condition`."""
        if self.category is not None:
            return ([self.category],)
        exact = [name for name in self.streams if "*" not in name]
        wild = [name.translate(_ESCAPED) for name in self.streams if "*" in name]
        return tuple(each for each in (self._categories, exact, wild) if each)

    def condition(self, message: str, places: Sequence[str]) -> str:
        """Return an SQL condition on a row named `message`.

        `places` are the placeholders of the parameters, such as `$1`, each for an array of text.
        """
        ahead = iter(places)
        if self.category is not None:
            return f"{message}.category = ANY({next(ahead)})"
        found = [f"{message}.category = ANY({next(ahead)})"] if self._categories else []
        terms: list[str] = []
        if any("*" not in name for name in self.streams):
            terms.append(f"{message}.stream = ANY({next(ahead)})")
        if any("*" in name for name in self.streams):
            terms.append(f"{message}.stream LIKE ANY({next(ahead)})")
        if terms:
            found.append(f"({' OR '.join(terms)})")
        return " AND ".join(found) or "true"

    @property
    def _categories(self) -> list[str]:
        """The categories of all names, if each name has one; the index is by category."""
        heads = [name.partition("-") for name in self.streams]
        if any("*" in head for head, _, _ in heads):
            return []
        return sorted({head for head, _, _ in heads})

    def __str__(self) -> str:
        if self.category is not None:
            return f"category {self.category}"
        return f"streams {', '.join(self.streams)}" if self.streams else "all streams"
