"""The migrations of a log's schema: SQL files, in order, with the schema's name filled in. Pure.

A released migration never changes: its checksum is stored in the database. A change is a new file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..client.names import quoted


@dataclass(frozen=True, slots=True)
class Migration:
    """One version of the schema, as a step from the previous version."""

    version: int
    name: str
    text: str
    """SQL with placeholders."""

    @property
    def checksum(self) -> str:
        """A checksum of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def filled(text: str, schema: str, mark_class: int) -> str:
    """Return the text with its placeholders replaced. Other braces are kept: SQL uses them."""
    return text.replace("{schema}", quoted(schema)).replace("{class}", str(mark_class))


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations, oldest first."""
    folder = Path(__file__).with_name("migrations")
    found: list[Migration] = []
    for file in sorted(folder.glob("*.sql")):
        number, _, name = file.stem.partition("_")
        text = file.read_text(encoding="utf-8")
        found.append(Migration(version=int(number), name=name, text=text))
    return tuple(found)


def newest() -> int:
    """Return the version that this release of Sluicegate installs."""
    return migrations()[-1].version
