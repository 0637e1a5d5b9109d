"""The parser of the command line: commands with examples, and suggestions for near-misses.

1. Without a command, the help is printed on standard error, and the exit code is that of bad use: 2.
2. An unknown command, option or value also exits with 2. The error suggests the nearest one, and
   lists the commands if it is a command.
3. The help of each command ends in an example, which is a complete command line.
4. A message may quote a misplaced DSN, so it is printed without secrets.
5. The package of a technology declares its group of commands, as `GROUP` of its `commands`.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from .._core.text import hide
from ..letters.letter import moment
from ..letters.text import printable
from .console import BAD_USE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

DSN = "postgresql://app@db/shop"
"""The database of the examples."""
_COMMAND = "COMMAND"
_NO_CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: (?P<value>'.*'|\".*\") \(")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Parser(argparse.ArgumentParser):
    """A parser whose help ends in an example."""

    def __init__(self, *, example: str, **options: Any) -> None:
        super().__init__(**options)
        self.example = example
        self.commands: dict[str, Parser] = {}
        """The parsers of the commands, by name."""
        self._texts: dict[str, str] = {}
        self.set_defaults(parser=self)

    def accept_commands(self, dest: str) -> Callable[..., Parser]:
        """Accept a command, stored as `dest`; return a function that adds one.

        Its arguments are the name, a line for the list of commands, an example, and a description
        (default: the line).
        """
        group = self.add_subparsers(dest=dest, title="commands", metavar=_COMMAND)

        def add(name: str, text: str, example: str, description: str = "") -> Parser:
            described = description or f"{text[0].upper()}{text[1:]}."
            made = group.add_parser(name, help=text, description=described, example=example)
            self.commands[name], self._texts[name] = made, text
            return made

        return add

    def argument(self, name: str, metavar: str, text: str, **options: Any) -> None:
        """Accept an argument, or an option with a value."""
        self.add_argument(name, metavar=metavar, help=text, **options)

    def several(self, name: str, metavar: str, text: str, **options: Any) -> None:
        """Accept an option that can be repeated; its values are a list."""
        self.argument(name, metavar, f"{text}; repeatable", action="append", default=[], **options)

    def flag(self, name: str, text: str) -> None:
        """Accept an option without a value."""
        self.add_argument(name, action="store_true", help=text)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a whole command line. Exits for help, bad use and a missing command."""
        options, unknown = self.parse_known_args(arguments)
        chosen: Parser = options.parser
        if unknown:
            known = re.findall(r"--[\w-]+", chosen.format_help())
            chosen.error(f"unrecognized arguments: {' '.join(unknown)}{_near(unknown[0], known)}")
        if chosen.commands:
            chosen.print_help(sys.stderr)
            sys.exit(BAD_USE)
        return options

    def format_help(self) -> str:
        """Return the help, with the example."""
        return f"{super().format_help()}\nexample:\n  {self.example}\n"

    def error(self, message: str) -> NoReturn:
        """Exit with 2, after printing the usage and the error."""
        found = _NO_CHOICE.match(message)
        if found is not None and found["name"] == _COMMAND:
            value = found["value"][1:-1]
            message = f"there is no command {value!r}{_near(value, self.commands)}"
        elif found is not None:
            choices = re.findall(r"[\w.-]+", message[found.end() :].removeprefix("choose from"))
            message += _near(found["value"][1:-1], choices)
        shown = printable(hide(message))
        if found is not None and found["name"] == _COMMAND:
            lines = [f"  {name:12}{text}" for name, text in self._texts.items()]
            shown = "\n".join([shown, "", "commands:", *lines])
        super().error(shown)


def _near(value: str, known: Iterable[str]) -> str:
    near = get_close_matches(value, [*known], n=1)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What `sluicegate NAME` needs to know of its commands."""

    description: str
    """The first lines of its help."""
    example: str
    """A complete command line."""
    options: Callable[[Parser], None]
    """Declares the commands and their arguments."""
    run: Callable[[argparse.Namespace], int]
    """Runs a command; returns the exit code."""
    extras: Mapping[str, str]
    """The extra that provides each package that a command may miss."""


def count(text: str) -> int:
    """Parse an argument as a whole number of at least 1. Raises `ArgumentTypeError`."""
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return value


def when(text: str) -> datetime:
    """Parse an argument as an aware time. Raises `ArgumentTypeError`."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return moment(text)
    except ValueError:
        message = (
            f"{text!r} must be a time such as 2026-01-31T12:00 (UTC without an "
            "offset), or 90m, 12h or 7d ago"
        )
        raise argparse.ArgumentTypeError(message) from None


def age(text: str) -> timedelta:
    """Parse an argument as a time span, such as 90m or 7d. Raises `ArgumentTypeError`."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be a time span such as 90m, 12h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
