"""Confirmation before a command changes something that it cannot restore."""

from __future__ import annotations

import sys

from .named import UseError


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether `--yes` was given, or the answer on the terminal is yes.

    Blocks, so call it outside an event loop, where Ctrl-C works. Raises `UseError` if there is no
    terminal to ask on.
    """
    if yes:
        return True
    terminal = sys.stdin  # None if it was closed before the start
    if terminal is None or not terminal.isatty():
        raise UseError(f"{question} There is no terminal to ask on: to go on, add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return terminal.readline().strip().lower() in {"y", "yes"}
