"""A group of commands, as the package of a technology declares it: `GROUP` of its `commands`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from .parser import Parser

Counts: TypeAlias = "Callable[[], Callable[[str], int]]"
"""Makes the type of an argument that is a whole number of at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What `sluicegate NAME` needs to know of its commands."""

    description: str
    """The first lines of its help."""
    example: str
    """A complete command line."""
    options: Callable[[Parser, Counts], None]
    """Declares the commands and their arguments."""
    run: Callable[[argparse.Namespace], int]
    """Runs a command; returns the exit code."""
    extras: Mapping[str, str]
    """The extra that provides each package that a command may miss."""
