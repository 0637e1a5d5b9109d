"""What a test has scripted for the calls of a memory source."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..._core import checks


class Crashed(ConnectionError):
    """A call of a memory source that has crashed."""


@dataclass(frozen=True, slots=True)
class CommitStep:
    """What becomes of one commit."""

    error: BaseException | None = None
    is_stored: bool = True
    seconds: float = 0.0


class Script:
    """The scripted commits and fetches, and the usual ones after them."""

    def __init__(self, commit_seconds: float = 0.0) -> None:
        self._usual = CommitStep(seconds=commit_seconds)
        self._commits: deque[CommitStep] = deque()
        self._fetches: deque[BaseException] = deque()

    def add_commit(self, error: BaseException | None, stored: bool | None, seconds: float) -> None:
        """Add a step for the next commit without one."""
        is_stored = error is None if stored is None else stored
        checks.seconds("seconds", seconds, zero=True)
        self._commits.append(CommitStep(error, is_stored, float(seconds)))

    def add_fetch(self, error: BaseException) -> None:
        """Add an error for the next fetch without one."""
        self._fetches.append(error)

    def next_commit(self) -> CommitStep:
        """The step of the commit that begins."""
        return self._commits.popleft() if self._commits else self._usual

    def next_fetch(self) -> BaseException | None:
        """The error of the fetch that begins; `None` without one."""
        return self._fetches.popleft() if self._fetches else None
