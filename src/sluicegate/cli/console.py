"""The terminal and the process of a command: exit codes, SIGTERM, messages, confirmation."""

from __future__ import annotations

import asyncio
import signal
import sys

from ..letters.text import printable

OK = 0
FAILED = INCOMPLETE = 1
BAD_USE = 2
INTERRUPTED = 130
TERMINATED = 143


class Termination:
    """Cancels the task that created it when SIGTERM arrives."""

    def __init__(self) -> None:
        self.has_come = False
        self._task = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._arrive)

    def _arrive(self) -> None:
        self.has_come = True
        if self._task is not None:
            self._task.cancel()


class UseError(Exception):
    """An error in the arguments, with the reason in its message."""


def say(text: str) -> None:
    """Print a line on standard error, without control characters."""
    print(printable(text), file=sys.stderr)


def encodable(text: str) -> str:
    """Escape the characters that the output's encoding lacks."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


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
