"""For any results of handlers, every message is settled once, in key order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import finite
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate import (
    Ack,
    Nak,
    RetryPolicy,
    Terminate,
    ToDeadLetter,
    TransientError,
    UnavailableError,
)
from sluicegate.consumer import MemoryLog, Record, Skip
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sluicegate import Message

ATTEMPTS = 3


@dataclass(frozen=True)
class Program:
    """A log, the arguments of a consumer, and the random behaviour of its handler."""

    records: list[tuple[int, int, int]]
    """Partition, key and size of each record."""
    concurrency: int
    size: int
    max_wait: float | None
    max_bytes: int | None
    max_per_key: int | None
    max_in_flight: int
    ordering: str
    on_mismatch: str
    seed: int


PROGRAMS = st.builds(
    Program,
    records=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=60
    ),
    concurrency=st.integers(1, 4),
    size=st.integers(1, 20),
    max_wait=st.sampled_from([0.0, 0.2, 5.0, None]),
    max_bytes=st.sampled_from([None, 1, 12]),
    max_per_key=st.sampled_from([None, 1, 2]),
    max_in_flight=st.integers(20, 40),
    ordering=st.sampled_from(["key", "key", "partition", "unordered"]),
    on_mismatch=st.sampled_from(["terminate", "retry"]),
    seed=st.integers(0, 1 << 30),
)


class Model:
    """A batch handler with random behaviour that checks each of its calls."""

    def __init__(self, program: Program, log: MemoryLog, clock: FakeClock) -> None:
        self._program = program
        self._clock = clock
        self._random = random.Random(program.seed)
        self._troubles = 12
        self._running: Counter[Hashable] = Counter()
        self._batches = 0
        self._left: dict[Hashable, list[int]] = defaultdict(list)
        """The unsettled messages of each key, in order."""
        self._fails: Counter[tuple[Hashable, int]] = Counter()
        self.fates: Counter[str] = Counter()
        for records in log.records.values():
            for record in records:
                self._left[self._key_of(record)].append(record.offset)

    def _key_of(self, record: Any) -> Hashable:
        """The lane of a record: keys of two partitions are distinct."""
        if self._program.ordering == "partition":
            return int(record.partition)
        if self._program.ordering == "unordered":
            return record.partition, record.offset
        return record.partition, record.key

    @property
    def is_done(self) -> bool:
        """Whether every message is settled."""
        return not any(self._left.values()) and not self._running

    async def __call__(self, batch: list[Message]) -> object:
        """Check a call and return any results."""
        by_key: dict[Hashable, list[int]] = defaultdict(list)
        for message in batch:
            by_key[self._key_of(message)].append(message.offset)
        self._check(batch, by_key)
        self._running.update(by_key.keys())
        self._batches += 1
        assert self._batches <= self._program.concurrency
        try:
            await self._clock.sleep(self._random.choice([0.0, 0.0, 0.1, 1.0]))
            return self._answer(batch, by_key)
        finally:
            self._batches -= 1
            self._running -= Counter(by_key.keys())

    def _check(self, batch: list[Message], by_key: dict[Hashable, list[int]]) -> None:
        program = self._program
        assert 0 < len(batch) <= program.size
        if program.max_bytes is not None and len(batch) > 1:
            assert sum(message.size for message in batch) <= program.max_bytes
        if program.ordering == "partition":
            assert len(by_key) == 1
        for key, offsets in by_key.items():
            assert not self._running[key], "a key in two running batches"
            assert len(offsets) <= (program.max_per_key or len(offsets))
            assert offsets == self._left[key][: len(offsets)], "out of order"

    def _answer(self, batch: list[Message], by_key: dict[Hashable, list[int]]) -> object:
        mood = self._random.random() if self._troubles else 1.0
        if mood < 0.4:
            self._troubles -= 1
        if mood < 0.1:
            if len(batch) == 1:
                self._failed(*next((key, offsets[0]) for key, offsets in by_key.items()))
            raise TransientError("perhaps")
        if mood < 0.2:
            raise UnavailableError("down")
        results = [self._result() for _ in batch] if mood < 0.4 else [None] * len(batch)
        given = self._random.randint(0, len(batch) + 1) if mood < 0.25 else len(batch)
        returned = [*results, Ack()][:given]
        missing = Terminate() if self._program.on_mismatch == "terminate" else Nak()
        self._settle(batch, [*returned, *[missing] * len(batch)])
        return returned if mood < 0.9 or self._troubles else None

    def _result(self) -> object:
        """Any result, or `None`."""
        return self._random.choice(
            [None, Ack(), Skip(), Nak(), Nak(0.0), Nak(2.0), Terminate(), ToDeadLetter("no"), 17]
        )

    def _settle(self, batch: list[Message], results: list[object]) -> None:
        stopped: set[Hashable] = set()
        for message, result in zip(batch, results, strict=False):
            key = self._key_of(message)
            if key in stopped:
                continue
            if result is None or isinstance(result, Ack):
                self._left[key].remove(message.offset)
                self.fates["skipped" if isinstance(result, Skip) else "acked"] += 1
                continue
            stopped.add(key)
            if isinstance(result, Nak):
                self._failed(key, message.offset)
            else:
                self._terminated(key, message.offset)

    def _failed(self, key: Hashable, offset: int) -> None:
        self._fails[key, offset] += 1
        if self._fails[key, offset] == ATTEMPTS:
            self._terminated(key, offset)

    def _terminated(self, key: Hashable, offset: int) -> None:
        self._left[key].remove(offset)
        self.fates["terminated"] += 1


def check(program: Program) -> None:
    """Run a program to the end of its log."""
    log, ends = MemoryLog(), Counter[int]()
    for partition, key, size in program.records:
        log.append(Record("t", partition, ends[partition], key, bytes(size)))
        ends[partition] += 1
    with FakeClock() as clock:
        model = Model(program, log, clock)
        consumer = finite(
            log,
            clock,
            concurrency=program.concurrency,
            in_flight=program.max_in_flight,
            ordering=program.ordering,
            poison="skip",
            retry=RetryPolicy(attempts=ATTEMPTS),
        )
        report = clock.run(
            consumer.run_batch(
                model,
                size=program.size,
                max_wait=program.max_wait,
                max_bytes=program.max_bytes,
                max_per_key=program.max_per_key,
                on_mismatch=program.on_mismatch,  # type: ignore[arg-type]
            )
        )
    counts = report.counts
    found = {"acked": counts.acked, "skipped": counts.skipped, "terminated": counts.terminated}
    assert model.is_done
    assert report.complete
    assert sum(model.fates.values()) == len(program.records)
    assert +Counter(found) == model.fates
    positions = {partition.partition: offset for partition, offset in report.positions.items()}
    assert positions == dict(ends)


@given(PROGRAMS)
@examples(15, long=200)
def test_every_message_is_settled_once_and_in_order(program: Program) -> None:
    """consumer/O36, O-T1, O-T11, O-T12, G-T8, consumer/C:Ba1 to consumer/C:Ba5: for any keys,
    limits and results.

    A key is in at most one running batch, in order and within all limits, and only acknowledgements
    before its first other result count. Each message has its own count of attempts.
    """
    check(program)


@pytest.mark.soak
@given(PROGRAMS)
@settings(max_examples=5_000, deadline=None)
def test_every_message_is_settled_once_and_in_order_in_many_programs(program: Program) -> None:
    """O-T1, G-T8."""
    check(program)
