"""Problems of a log's schema, each with what repairs it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """Something that is wrong with a log's schema, or worth knowing."""

    name: str
    """A short name, such as `sequence-behind`."""
    text: str
    """What is wrong, in one sentence."""
    repair: tuple[str, ...] = ()
    """The SQL statements that repair it, for the owner of the log to run; empty if none can."""
    advice: str = ""
    """What else to do."""
    is_note: bool = False
    """Whether the log works all the same."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" + (f"; to repair: {self.advice}" if self.advice else "")
