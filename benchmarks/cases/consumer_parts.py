"""The time of a message by part: the consumer as a whole, and its parts alone, driven in portions
of a fetch, like in the consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from sluicegate import Message
from sluicegate.consumer import MemoryLog, Position
from sluicegate.consumer.lanes.keys import KeyRules
from sluicegate.consumer.lanes.schedule import Schedule
from sluicegate.consumer.lanes.window import RecordSizes, Window
from sluicegate.consumer.progress.claim import Claim

from ..consuming import FETCH, PARTITION, WINDOW, nothing, ours, records, source_of
from ..harness import NS_PER_ITEM, Case, Contender
from ..peers.task_recipe import Host
from ..stopwatch import Clock, Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate.consumer import Record, Result

    from ..harness import Results, Turn

WHOLE = "a message, as a whole"
FETCHING = "fetch it, in memory"
ADMITTING = "admit it: size, lane, message, tracker, window"
SIZING = "of that, its size"
MAKING = "of that, the message object"
CALLING = "call and await a handler that does nothing"
ACKNOWLEDGING = "acknowledge it: tracker, lane, window"
COMMITTING = "position and map, for each fetch"
PARTS = (FETCHING, ADMITTING, CALLING, ACKNOWLEDGING, COMMITTING)
"""The parts that do not overlap."""
REST = "the worker's loop around the handler, its wake-ups, the consumer's other tasks, its start"


class NoOwner:
    """An owner that settles nothing: no handler uses it."""

    def settle(self, message: Message, result: Result) -> bool:
        return False

    def in_progress(self, message: Message) -> None:
        pass


class Stretches:
    """The time of each part, measured in many short stretches."""

    def __init__(self) -> None:
        self.took: defaultdict[str, Took] = defaultdict(lambda: Took(0.0, 0.0))

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        watch = Stopwatch()
        yield
        self.took[part] += watch.read()


async def drive(given: Sequence[Record]) -> Stretches:
    """Pass records through the parts, one fetch at a time."""
    schedule = Schedule(KeyRules(), Window(WINDOW, 2**40), max_per_key=WINDOW // 2)
    lanes = schedule.lanes_for(PARTITION)
    claim = Claim(PARTITION, 1, Position(0), lanes, NoOwner())
    sizes = RecordSizes(None)
    ready, acknowledge = schedule.ready, schedule.acknowledge
    stretches, host, source = Stretches(), Host(), source_of(MemoryLog(given))
    async with source.open(host):
        while True:
            with stretches.of(FETCHING):
                fetched = await source.fetch(host.claims, FETCH)
            if fetched is None:
                return stretches
            taken = fetched[0].records
            with stretches.of(ADMITTING):
                schedule.admit(claim, taken)
            with stretches.of(SIZING):
                sizes.of(taken)
            with stretches.of(MAKING):
                for index, record in enumerate(taken):
                    Message(record.key, 100, record, claim, index)
            with stretches.of(CALLING):
                for record in taken:
                    await nothing(record)
            with stretches.of(ACKNOWLEDGING):
                while ready:
                    acknowledge(ready.popleft())
            with stretches.of(COMMITTING):
                claim.snapshot()


def _turn(part: str, given: Sequence[Record]) -> Turn:
    return lambda: asyncio.run(drive(given)).took[part]


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    given = records(count)
    part = partial(_contender, given=given)
    yield (
        Contender(WHOLE, ours(given, nothing), ours=True),
        part(FETCHING),
        part(ADMITTING),
        part(SIZING),
        part(MAKING),
        part(CALLING),
        part(ACKNOWLEDGING),
        part(COMMITTING),
    )


def _contender(name: str, *, given: Sequence[Record]) -> Contender:
    return Contender(name, _turn(name, given), ours=True)


def _rest(results: Results) -> list[str]:
    figures = results.figures
    parts = [sum(each) for each in zip(*(figures[part] for part in PARTS), strict=True)]
    rests = [whole - part for whole, part in zip(figures[WHOLE], parts, strict=True)]
    return [f"The rest, {median(rests):,.0f} ns ({min(rests):,.0f} to {max(rests):,.0f}): {REST}."]


CASE = Case(
    name="consumer-parts",
    title="Time of a message, by part",
    prepare=prepare,
    items=50_000,
    quick_items=1_000,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    turns=3,
    peers=(),
    is_drawn=False,
    notes=_rest,
)
