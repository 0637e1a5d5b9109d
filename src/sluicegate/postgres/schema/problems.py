"""Problems of a log's schema, each with its repair. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """A problem of a log's schema, or a note about it."""

    name: str
    """A short name, such as `sequence-behind`."""
    text: str
    """The problem, in one sentence."""
    repair: tuple[str, ...] = ()
    """The SQL statements that repair it, to be run by the log's owner; empty without any."""
    advice: str = ""
    """Further advice."""
    is_note: bool = False
    """Whether the log works nevertheless."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f"; to repair: {self.advice}" if self.advice else "")
