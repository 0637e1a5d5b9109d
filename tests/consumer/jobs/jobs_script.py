"""The random data of the tests of jobs: the arguments of a process, the script of each record, and
the expected results.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tests.machine.consumer_machine import Truth, place_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tests.machine.consumer_machine import Place

    from sluicegate import Message
    from sluicegate.consumer import MemoryLog

DRAIN = 2.0
IN_ORDER = {"job", "chain"}
"""The kinds of events that complete in key order."""


@dataclass(frozen=True)
class Setting:
    """The arguments of a process."""

    ordering: str
    concurrency: int
    max_in_flight: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]
    batch: tuple[int, int, int]
    """The batch size, the most concurrent batches and the most items inside, as multiples of the
    size.
    """
    batch_tries: int
    delay: float
    attempts: int
    every: float | None


def _bounds() -> st.SearchStrategy[tuple[int, int, int]]:
    return st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 3)).map(
        lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
    )


settings_of_members = st.builds(
    Setting,
    ordering=st.sampled_from(["partition", "partition", "key"]),
    concurrency=st.sampled_from([1, 2, 8]),
    max_in_flight=st.sampled_from([2, 5, 40]),
    first=_bounds(),
    second=_bounds(),
    batch=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
    batch_tries=st.sampled_from([1, 1, 3]),
    delay=st.sampled_from([0.01, 0.4]),
    attempts=st.sampled_from([1, 2, 4]),
    every=st.sampled_from([None, 0.3, 1.0]),
)


@dataclass(frozen=True)
class Script:
    """The script of a record."""

    kind: str
    takes: float
    """Duration of its handler, in seconds."""
    job: float
    """Duration of its processors and of batches with its items, in seconds."""
    final: float
    """Duration of its finalisers, in seconds."""
    job_fails: bool
    fails: int
    """Failed attempts of its handler, in each claim."""
    final_fails: int
    """Failed attempts of each finaliser, in each claim."""
    mood: str
    is_early: bool
    items: tuple[str, ...]


_TIMES = st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5, 3.0])

scripts = st.builds(
    Script,
    kind=st.sampled_from(
        ["plain", "job", "job", "chain", "chain", "items", "job then items", "raw", "stranger"]
    ),
    takes=_TIMES,
    job=_TIMES,
    final=_TIMES,
    job_fails=st.booleans(),
    fails=st.sampled_from([0, 0, 0, 1]),
    final_fails=st.sampled_from([0, 0, 0, 1, 5]),
    mood=st.sampled_from(["raise", "nak", "later", "letter", "terminate"]),
    is_early=st.booleans(),
    items=st.lists(st.sampled_from("abc"), max_size=5).map(tuple),
)


@dataclass(eq=False)
class Work:
    """The argument of a processor."""

    message: Message
    script: Script
    begun: int = 0
    processed: int = 0


class JobsTruth(Truth):
    """The calls that the functions have observed, compared with the log."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.scripts: dict[Place, Script] = {}
        self.last: dict[Any, Any] = {}
        self.happened: Counter[str] = Counter()

    def claim(self, is_true: object, complaint: str) -> None:
        """Record a complaint: an exception in a handler would only be a failed attempt."""
        if not is_true:
            self.complaints.append(complaint)

    def comes_after(self, face: Hashable, place: Any, what: str) -> None:
        """Check that events at this point occur in order."""
        before = self.last.get(face)
        self.claim(before is None or before < place, f"out of order: {what} {before}, {place}")
        self.last[face] = place

    def is_complete(self, message: Message) -> None:
        """Record an event that completed in its claim; earlier events of its kind must be
        complete.
        """
        kind = self.scripts[place_of(message)].kind
        if kind in IN_ORDER:
            for place in self.earlier(message):
                is_like_it = self.scripts[place].kind == kind
                told = f"{message} is complete, and overtook {place}"
                self.claim(not is_like_it or place in self.settled, told)
        self.settled.add(place_of(message))
