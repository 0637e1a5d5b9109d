"""The dead-letter circuit: a consumer stops instead of sending a whole partition to the dead
letters.

White box: the count of letters in its window.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, Poisoned, finite, log_of, records

from sluicegate._core.order.lanes import Lanes
from sluicegate.consumer import MemoryLog, Poison, PoisonError, Position
from sluicegate.consumer.failures.dead_letters import WINDOW, LetterCircuit
from sluicegate.consumer.progress.claim import Claim
from sluicegate.errors import DeadLetterLimit

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def claim(partition: Any = P0) -> Claim:
    owner: Any = None
    return Claim(partition, 1, Position(0), Lanes(), owner)


class Progress:
    """The messages of a claim, which are settled one after another."""

    def __init__(self, circuit: LetterCircuit, claim: Claim) -> None:
        self.circuit = circuit
        self.claim = claim
        self._offsets = itertools.count()

    def ends(self) -> None:
        """Settle the next record."""
        offset = next(self._offsets)
        self.claim.tracker.admit(offset, offset, 1)
        self.claim.tracker.done(offset)

    def handled(self, count: int = 1) -> None:
        """Handle messages."""
        for _ in range(count):
            self.ends()

    def failed(self, error: BaseException | None = None) -> DeadLetterLimit | None:
        """Judge a failed message, and settle it with a dead letter."""
        limit = self.circuit.count_failure(self.claim, error or ValueError("bad"))
        self.ends()
        self.circuit.leave_out(self.claim)
        return limit


def test_failures_in_a_row_open_the_circuit() -> None:
    """consumer/C:F3: `max_consecutive` counts per partition, and the error names the first
    failure.
    """
    circuit = LetterCircuit(None, 3)
    one, other = Progress(circuit, claim()), Progress(circuit, claim(P1))
    assert one.failed() is None
    one.handled()
    first = PoisonError("the first")
    assert one.failed(first) is None
    assert one.failed() is None
    assert other.failed() is None
    limit = one.failed()
    assert limit is not None
    assert limit.__cause__ is first
    text = str(limit)
    assert text.startswith("t/0: 3 messages in a row failed for good")
    assert "(max_consecutive_dead_letters=3)" in text
    assert "The first error: PoisonError: the first" in text


def test_settled_dead_letters_are_no_handled_messages() -> None:
    """Handled messages are the settled ones less those settled otherwise."""
    progress = Progress(LetterCircuit(None, 2), claim())
    assert progress.failed() is None
    progress.ends()  # a message behind a parked one is parked
    progress.circuit.leave_out(progress.claim)
    assert progress.failed() is not None


def test_the_ratio_is_of_the_last_messages() -> None:
    """consumer/C:F3: `max_ratio` needs a full window of messages."""
    progress = Progress(LetterCircuit(0.002, None), claim())
    for _ in range(5):
        assert progress.failed() is None
    progress.handled(3 * WINDOW)
    assert progress.failed() is None
    assert progress.failed() is None
    assert progress.failed() is not None


def test_a_new_claim_begins_to_count_anew() -> None:
    circuit = LetterCircuit(None, 2)
    assert Progress(circuit, claim()).failed() is None
    assert Progress(circuit, claim()).failed() is None


def test_records_that_an_earlier_claim_settled_are_not_counted_as_handled() -> None:
    progress = Progress(LetterCircuit(None, 2), claim())
    assert progress.failed() is None
    progress.ends()
    progress.claim.replay.skipped += 1
    assert progress.failed() is not None


def test_without_limits_nothing_is_counted() -> None:
    progress = Progress(LetterCircuit(None, None), claim())
    assert [progress.failed() for _ in range(3)] == [None, None, None]


async def test_the_consumer_stops_before_it_gives_the_message_up(fake_clock: FakeClock) -> None:
    """consumer/C:F3: the message stays, and no later message of its key is handled before it."""
    log, handler = log_of(*"abbcc"), Poisoned(1, 3)
    options = {"poison": Poison("skip", max_consecutive_dead_letters=2), "concurrency": 1}
    with pytest.raises(DeadLetterLimit, match=r"t/0: 2 messages in a row .* PoisonError: bad 1"):
        await finite(log, fake_clock, **options).run(handler)
    assert handler.offsets == [0, 1, 3, 2]
    assert log.positions[P0] == Position(3)


async def test_a_partition_of_good_messages_does_not_stop_the_consumer(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog([*records("abc"), *records("abc", partition=1)])
    consumer = finite(log, fake_clock, poison=Poison("skip", max_consecutive_dead_letters=2))
    report = await consumer.run(Poisoned(0))
    assert report.counts.terminated == 2
    assert report.counts.acked == 4
