"""A selection of streams of a log: all, by category, or by name. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.subscriptions import SLOTS
from ..client.names import literal

if TYPE_CHECKING:
    from collections.abc import Sequence


_NAMES = 'must be the name of a stream, or several; * in a name matches any text, as in "order-*"'
_ESCAPED = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_", "*": "%"})
LONGEST_TOPIC = 200
"""The longest topic in characters; a longer one is shortened and ends in a digest."""


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
    def parse(cls, text: str) -> StreamSelection:
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


@dataclass(frozen=True, slots=True)
class SelectedLog:
    """The log of a schema, and the streams to read from it."""

    schema: str
    streams: StreamSelection

    @property
    def text(self) -> str:
        """The selection in the form that a subscription stores."""
        return self.streams.text

    @property
    def slots(self) -> Sequence[int]:
        """The slots that can have messages of these streams."""
        names = self.streams.streams
        if names and not any("*" in name for name in names):
            return sorted({slot_of(name) for name in names})
        return range(SLOTS)

    @property
    def condition(self) -> str:
        """The SQL condition for these messages, of the table `m`. It contains the names as
        literals, so that the server can plan for them: a rare category is read by index.
        """
        values = self.streams.parameters

        def filled(found: re.Match[str]) -> str:
            texts = [*map(literal, values[int(found[2]) - 1])]
            return f"{found[1]} {texts[0]}" if len(texts) == 1 else _any(found[1], texts)

        places = [f"${number}" for number in range(1, len(values) + 1)]
        return re.sub(r"(=|LIKE) ANY\(\$(\d+)\)", filled, self.streams.condition("m", places))

    @property
    def topic(self) -> str:
        """The topic of the records: the schema and the selection."""
        if self.streams == StreamSelection():
            return self.schema
        full = f"{self.schema}:{self.streams.category or ','.join(self.streams.streams)}"
        if len(full) <= LONGEST_TOPIC:
            return full
        digest = hashlib.sha256(full.encode()).hexdigest()[:16]
        return f"{full[: LONGEST_TOPIC - 17]}:{digest}"

    def __str__(self) -> str:
        return str(self.streams)


def slot_of(stream: str) -> int:
    """Return the slot of a stream, as the log computes it."""
    return hashlib.sha256(stream.encode()).digest()[0]


def _any(operator: str, texts: Sequence[str]) -> str:
    return f"{operator} ANY(ARRAY[{', '.join(texts)}])"
