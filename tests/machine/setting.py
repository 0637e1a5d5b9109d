"""The batchers that the machine tries, and the behaviour of their destinations."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tests.machine.destination import ERRORS, Act

from sluicegate import Backoff, CircuitBreaker, DeadLetter, Limits, Retry, Timeout
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_ITEMS = 80
"""Together with those in flight, fewer items than make a producer yield, so that they are accepted
in the order in which they are offered.
"""


def retry() -> Retry:
    return Retry(attempts=3, backoff=Backoff(base=1.0, longest=4.0, rng=random.Random(1)))


STACKS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "bare": lambda: (),
    "timeout": lambda: (Timeout(2.0),),
    "retry": lambda: (retry(),),
    "timeout in retry": lambda: (Timeout(2.0), retry()),
    "retry in timeout": lambda: (retry(), Timeout(4.0)),
    "full": lambda: (
        Timeout(2.0),
        CircuitBreaker(consecutive=3, open_for=1.0, longest_open=4.0),
        retry(),
        DeadLetter(MemorySink()),
    ),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One batcher."""

    workers: int
    max_items: int
    spare: int
    max_delay: float
    overflow: Any
    stack: str
    last_resort: str
    sized: bool
    crash: bool
    default: Act
    patience: int
    """The number of items accepted before any shutdown."""
    final_deadline: float
    final_admit: bool

    def limits(self) -> Limits:
        return Limits(
            max_items=self.max_items,
            workers=self.workers,
            max_pending_items=(self.workers + 1) * self.max_items + self.spare,
            max_delay=self.max_delay,
            max_bytes=5 if self.sized else None,
            max_pending_bytes=9 if self.sized else None,
            flush_timeout=5.0,
        )


settings = st.builds(
    Setting,
    workers=st.integers(1, 4),
    max_items=st.integers(1, 4),
    spare=st.integers(0, 2),
    max_delay=st.sampled_from([0.5, 60.0]),
    overflow=st.sampled_from(["block", "block", "block", "reject", "drop_newest", "drop_oldest"]),
    stack=st.sampled_from(list(STACKS)),
    last_resort=st.sampled_from(["none", "none", "ok", "fail", "hang", "deaf", "partial"]),
    sized=st.booleans(),
    crash=st.sampled_from([False, False, False, True]),
    default=st.sampled_from(
        [
            Act(),
            Act(seconds=0.3),
            Act("gate"),
            Act("gate"),
            Act("fail"),
            Act("fail", error="unavailable"),
            Act("partial", which=frozenset({0})),
        ]
    ),
    patience=st.sampled_from([1, 8, 20, MOST_ITEMS]),
    final_deadline=st.sampled_from([0.0, 0.5, 5.0, 25.0]),
    final_admit=st.booleans(),
)
some = st.frozensets(st.integers(0, 2), min_size=1)
seconds = st.sampled_from([0.0, 0.0, 0.3, 1.0, 3.0])
errors = st.sampled_from(sorted(ERRORS))
acts = st.one_of(
    st.builds(Act, seconds=seconds),
    st.builds(Act, st.sampled_from(["fail", "half"]), seconds, error=errors),
    st.builds(Act, st.just("partial"), seconds, error=errors, which=some),
    st.builds(
        Act, st.sampled_from(["unknown", "hang"]), seconds, which=st.frozensets(st.integers(0, 2))
    ),
    st.builds(
        Act,
        st.sampled_from(["ok", "half"]),
        st.sampled_from([3.0, 8.0, 40.0]),
        deaf=st.just(True),
        error=errors,
    ),
    st.sampled_from([Act("gate"), Act("gate"), Act("short"), Act("nonsense")]),
)
rests = st.sampled_from([None, None, None, 0, 1, 2])
waits = st.sampled_from([None, None, None, 0.0, 0.4])
