"""A turn of a stream counts only if the server reports all of its messages as acknowledged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from benchmarks.cases import CASES as LISTED
from benchmarks.cases.nats.jetstream import CASE
from benchmarks.harness import measure
from benchmarks.nats.streams import connected, fill
from benchmarks.nats.ways import PATIENCE, Work, fetch_loop, ours, turn
from benchmarks.stopwatch import Took

if TYPE_CHECKING:
    from benchmarks.nats.ways import Way

    from sluicegate.testing import EmbeddedNats

MESSAGES = 100


@pytest.fixture(scope="module")
def url(embedded_nats: EmbeddedNats) -> str:
    """A server with the stream."""
    asyncio.run(fill(embedded_nats.url, MESSAGES, keys=10))
    return embedded_nats.url


def test_the_case_is_listed() -> None:
    assert CASE in LISTED


@pytest.mark.parametrize("way", [ours, fetch_loop])
def test_a_way_settles_every_message(url: str, way: Way) -> None:
    assert turn(way, url, MESSAGES).processor > 0


def test_a_message_that_is_not_acknowledged_is_no_figure(url: str) -> None:
    async def way(url: str, durable: str, _: Work) -> Took:
        async with connected(url) as client:
            stream = client.jetstream()
            subscription = await stream.pull_subscribe("", durable=durable, stream="BENCHMARK")
            for message in await subscription.fetch(MESSAGES - 1, timeout=PATIENCE):
                await message.ack_sync(timeout=PATIENCE)
        return Took(1.0, 1.0)

    with pytest.raises(AssertionError, match="99 of 100 are acknowledged"):
        turn(way, url, MESSAGES)


def test_one_try_in_twenty_fails_and_is_no_handling() -> None:
    work = Work(40)
    tries = [work.fails(b"%d x" % number) for number in (*range(40), 0, 20)]
    assert [at for at, failed in enumerate(tries) if failed] == [0, 20]
    assert work.is_finished
    assert work.read().wall > 0


def test_a_turn_without_its_messages_is_no_figure() -> None:
    work = Work(40)
    work.fails(b"0 x")
    with pytest.raises(AssertionError):
        work.read()


def test_the_case_runs() -> None:
    results = measure(CASE, items=MESSAGES, rounds=1)
    assert all(len(rounds) == 1 for rounds in results.figures.values())
