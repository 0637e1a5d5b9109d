"""Confirmation before a change that a command cannot undo."""

from __future__ import annotations

import sys

from .named import UseError


def confirmed(question: str, *, yes: bool) -> bool:
    """Return whether `--yes` was given or the answer on the terminal is yes.

    It blocks, so call it outside an event loop, where Ctrl-C works. Raises `UseError` if there is
    no terminal.
    """
    if yes:
        return True
    terminal = sys.stdin  # None if it was closed before the start
    if terminal is None or not terminal.isatty():
        raise UseError(
            f"{question} There is no terminal for the confirmation: add --yes to continue"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return terminal.readline().strip().lower() in {"y", "yes"}
