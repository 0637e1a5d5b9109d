"""What the random tests of jobs draw: the arguments of a process, and what becomes of each record; and
the truth about that.
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

    from penstock.consumer import Message
    from penstock.sources.memory import MemoryLog

DRAIN = 2.0
IN_ORDER = {"job", "chain"}
"""The kinds of events that are complete in the order of their key."""


@dataclass(frozen=True)
class Setting:
    """The arguments of a process."""

    ordering: str
    concurrency: int
    max_in_flight: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]
    batch: tuple[int, int, int]
    """The size, the most at once, and the most items inside, as a multiple of the size."""
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
    """What becomes of a record."""

    kind: str
    takes: float
    """Seconds of its handler."""
    job: float
    """Seconds of its processors, and of batches with items of it."""
    final: float
    """Seconds of its finalisers."""
    job_fails: bool
    fails: int
    """Failed tries of its handler, in each claim."""
    final_fails: int
    """Failed tries of each finaliser, in each claim."""
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
    """What a processor is given."""

    message: Message
    script: Script
    begun: int = 0
    processed: int = 0


class JobsTruth(Truth):
    """What the functions have seen, and what the log says."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.scripts: dict[Place, Script] = {}
        self.last: dict[Any, Any] = {}
        self.happened: Counter[str] = Counter()

    def claim(self, is_true: object, complaint: str) -> None:
        """Complain: raised in a handler, it would only be a failed try."""
        if not is_true:
            self.complaints.append(complaint)

    def comes_after(self, face: Hashable, place: Any, what: str) -> None:
        """Note what happens at a face, in order."""
        before = self.last.get(face)
        self.claim(before is None or before < place, f"out of order: {what} {before}, {place}")
        self.last[face] = place

    def is_complete(self, message: Message) -> None:
        """Note an event that is complete in its claim; earlier ones like it have to be."""
        kind = self.scripts[place_of(message)].kind
        if kind in IN_ORDER:
            for place in self.earlier(message):
                is_like_it = self.scripts[place].kind == kind
                told = f"{message} is complete, and overtook {place}"
                self.claim(not is_like_it or place in self.settled, told)
        self.settled.add(place_of(message))
