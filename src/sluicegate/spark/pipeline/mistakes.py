"""Mistakes in a pipeline, collected with their places."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Path = tuple[str | int, ...]
"""The path to a value: the names of tables and keys, and indices of arrays from 0."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake or doubt, with the path to its value."""

    path: Path
    text: str
    place: str = ""
    """File and line, if the pipeline was read from a file."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, shown(self.path), self.text) if part)


class PipelineError(ConfigError):
    """A pipeline cannot run as declared: `mistakes` has all findings. Nothing was started."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def shown(path: Path) -> str:
    """Format the path: `sinks.orders.stack[0].attempts`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def one_of(names: Iterable[str]) -> str:
    """Join the names for a sentence."""
    known = sorted(names)
    return ", ".join(known) if known else "none"


def meant(name: str, names: Iterable[str]) -> str:
    """Suggest the known name closest to `name`, or list all."""
    known = list(names)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {one_of(known)}"
