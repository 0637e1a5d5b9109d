"""The scripted results of calls of a memory source."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..._core import checks


class Crashed(ConnectionError):
    """A call of a memory source that has crashed."""


@dataclass(frozen=True, slots=True)
class CommitStep:
    """The result of one commit."""

    error: BaseException | None = None
    is_stored: bool = True
    seconds: float = 0.0


class Script:
    """Scripted commits and fetches, followed by normal ones."""

    def __init__(self, commit_seconds: float = 0.0) -> None:
        self._usual = CommitStep(seconds=commit_seconds)
        self._commits: deque[CommitStep] = deque()
        self._fetches: deque[BaseException] = deque()

    def add_commit(self, error: BaseException | None, stored: bool | None, seconds: float) -> None:
        """Script the next commit that has no script yet."""
        is_stored = error is None if stored is None else stored
        seconds = checks.seconds("seconds", seconds, zero=True, usual=checks.LONG_TIMEOUT)
        self._commits.append(CommitStep(error, is_stored, seconds))

    def add_fetch(self, error: BaseException) -> None:
        """Script an error for the next fetch that has no script yet."""
        self._fetches.append(error)

    def next_commit(self) -> CommitStep:
        """Return the result of the commit that begins."""
        return self._commits.popleft() if self._commits else self._usual

    def next_fetch(self) -> BaseException | None:
        """Return the error of the fetch that begins; `None` if there is none."""
        return self._fetches.popleft() if self._fetches else None
