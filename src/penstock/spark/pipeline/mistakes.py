"""What is wrong with a pipeline: all of it at once, each with its place."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..._core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Path = tuple[str | int, ...]
"""The way to a value: the names of tables and keys, and the places in arrays from 0."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong, or that cannot be told."""

    path: Path
    text: str
    place: str = ""
    """File and line, where the pipeline was read from a file."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, shown(self.path), self.text) if part)


class PipelineError(ConfigError):
    """A pipeline cannot run as it is declared. `mistakes` has everything that was found; nothing
    has been started.
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def shown(path: Path) -> str:
    """The path as people write it: `sinks.orders.stack[0].attempts`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def one_of(names: Iterable[str]) -> str:
    """The names as a list in a sentence."""
    known = sorted(names)
    return ", ".join(known) if known else "none"


def meant(name: str, names: Iterable[str]) -> str:
    """What somebody who wrote `name` may have meant, or else all there is."""
    known = list(names)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there is: {one_of(known)}"
