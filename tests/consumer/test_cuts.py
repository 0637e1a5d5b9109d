"""Cuts at any moment, of handlers that treat cancellations in any way: no other handler is
affected.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from consuming import records
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate import Ack, Backoff, Consumer, RetryPolicy
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message

PATIENT = RetryPolicy(
    attempts=1000, unlisted_attempts=1000, backoff=Backoff(base=0.5, longest=0.5, jitter="none")
)
HARMLESS = ("sleep(0)", "sleep", "group", "timeout", "swallow", "child")
HARMFUL = ("cancel itself", "raise a cancellation", "raise")


class Cut(Exception):
    """The error of a cut."""


async def fail() -> None:
    await asyncio.sleep(0)
    raise ValueError


async def act(action: str) -> None:
    match action:
        case "sleep(0)":
            await asyncio.sleep(0)
        case "sleep":
            await asyncio.sleep(1.0)
        case "group":
            with suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
        case "timeout":
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await asyncio.sleep(1.0)
        case "swallow":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)
        case "child":
            await asyncio.create_task(asyncio.sleep(1.0))
        case "cancel itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        case "raise a cancellation":
            raise asyncio.CancelledError
        case _:
            raise ValueError


class Program:
    """The results of each message's first attempts, and the times at which running handlers are
    cut.
    """

    def __init__(self, actions: Sequence[Sequence[str]], cuts: Sequence[tuple[int, float]]) -> None:
        self.actions = actions
        self.cuts = cuts
        self.was_cut: set[int] = set()
        self.failed: dict[int, int] = {}
        self.order: list[int] = []

    async def handle(self, message: Message) -> Ack:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "a cancellation of another turn"
        self.failed[message.offset] = message.attempt - 1
        if message.attempt <= 2:
            for action in self.actions[message.offset]:
                await act(action)
        self.order.append(message.offset)
        return Ack()

    async def cut(self, consumer: Consumer, clock: FakeClock) -> None:
        for rounds, seconds in self.cuts:
            for _ in range(rounds):
                await clock.sleep(0)
            await clock.sleep(seconds)
            for slot in consumer._open().workers.slots:
                self.was_cut |= {message.offset for message in slot.messages()}
                slot.cut(Cut())

    async def run(self, clock: FakeClock) -> None:
        keys = [("ab"[offset % 2], b"") for offset in range(len(self.actions))]
        source = MemorySource(MemoryLog(records(*keys)), ends=True, clock=clock)
        consumer = Consumer(source, clock=clock, retry=PATIENT, concurrency=1)
        async with consumer:
            cutting = asyncio.get_running_loop().create_task(self.cut(consumer, clock))
            report = await consumer.run(self.handle)
            cutting.cancel()
            await asyncio.wait([cutting])
        assert report.counts.acked == len(self.actions)
        for key in (0, 1):
            of_key = list(dict.fromkeys(offset for offset in self.order if offset % 2 == key))
            assert of_key == sorted(of_key)


def programs(most: int) -> st.SearchStrategy[Program]:
    actions = st.lists(st.sampled_from(HARMLESS + HARMFUL), min_size=1, max_size=3)
    moments = st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0]))
    return st.builds(
        Program,
        st.lists(actions, min_size=most, max_size=most),
        st.lists(moments, max_size=2 * most),
    )


def check(program: Program) -> None:
    with FakeClock() as clock:
        clock.run(program.run(clock))
    for offset, failed in program.failed.items():
        if failed:
            harmful = not set(HARMFUL).isdisjoint(program.actions[offset])
            assert offset in program.was_cut or harmful, f"{offset} has failed without a reason"


@given(programs(8))
@examples(15, long=100)
def test_a_cut_fails_only_what_was_running(program: Program) -> None:
    """O-T1, consumer/C:F4: with one worker, so leftovers of one turn would affect the next."""
    check(program)


@pytest.mark.soak
@given(programs(20))
@settings(max_examples=1000, deadline=None)
def test_a_cut_fails_only_what_was_running_at_length(program: Program) -> None:
    """O-T1."""
    check(program)
