"""Processes that are frozen, or whose loop is blocked, for longer and shorter than the wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.nats.jetstream.audit_help import audited

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.mark.long
@pytest.mark.parametrize("partitions", [None, 2])
@pytest.mark.parametrize("how", ["hold", "block"])
async def test_a_process_that_was_away_beyond_the_wait_settles_nothing_that_it_held(
    own: EmbeddedNats, tmp_path: Path, how: str, partitions: int | None
) -> None:
    """consumer/C:R2: frozen, or with a blocked loop. The other process handles everything, in
    order; late settlements of the first one appear in its log but not at the server.
    """
    async with audited(own, tmp_path, partitions) as made:
        held = await made.stream.publish("a", how, "", "")
        held += await made.stream.publish("b", "hold", "", "")
        first = await made.member(prefetch=10)
        await made.until_began(held[0])
        if how == "hold":
            await made.until_began(held[3])
            first.freeze()
        second = await made.member(blocks=False)
        await made.until_began(held[0], held[3], member=second)
        first.thaw()
        first.open_gate()
        first.open_gate()  # of the blocked loop, and of the other handler
        await made.until(lambda: held[0] in made.sequences("done", first.name))
        await first.until_log("could not be extended")
        await first.stop()
        assert await made.stream.unsettled() == len(held), "it has settled nothing"
        assert made.sequences("done", second.name) == []
        second.open_gate()
        newer = await made.stream.publish("a", "")
        await made.stream.until_unsettled(0)
        await second.stop()
        made.assert_exact()
        assert {*made.sequences("done", second.name)} == {*held, *newer}


@pytest.mark.long
async def test_a_process_that_is_frozen_for_less_than_the_wait_repeats_nothing(
    own: EmbeddedNats, tmp_path: Path
) -> None:
    """O-T17: under load, beside a standby process, which is pinned meanwhile."""
    wait, keys = 6.0, [f"k{number % 10}" for number in range(1000)]
    async with audited(own, tmp_path) as made:
        members = [await made.member(ack_wait=wait, max_in_flight=50) for _ in range(2)]
        await made.until(lambda: len(made.ready) == 2)
        producing = asyncio.create_task(made.stream.produce(keys))
        await made.until_done(200)
        working = made.lines[-1].member
        (member,) = [each for each in members if each.name == working]
        member.freeze()
        await asyncio.sleep(0.5 * wait + 0.2)  # the pin is lost after half of it
        member.thaw()
        await producing
        await made.until_done(len(keys))
        await made.stream.until_unsettled(0)
        for member in members:
            await member.stop()
            assert "could not be extended" not in member.log()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0


@pytest.mark.long
@pytest.mark.parametrize("partitions", [None, 2])
async def test_what_was_sent_to_a_frozen_process_is_not_handled_by_it_late(
    own: EmbeddedNats, tmp_path: Path, partitions: int | None
) -> None:
    """consumer/C:R2: messages that it had not read when it was frozen, and that another process
    handles meanwhile.
    """
    keys = [f"k{number % 10}" for number in range(300)]
    async with audited(own, tmp_path, partitions) as made:
        first = await made.member()
        await made.until(lambda: "m1" in made.ready)
        await made.stream.produce(keys[:10])
        await made.until_done(10)
        await made.stream.until_unsettled(0)
        first.freeze()
        await made.stream.produce(keys, "hold")
        second = await made.member(concurrency=10)
        await made.until(lambda: len(made.sequences("began", second.name)) == 10)
        first.thaw()
        first.open_gate()
        await first.until_log("partitions lost")
        await asyncio.sleep(0.3)  # time in which it must not handle them
        second.open_gate()
        await made.until_done(len(made.stream.stored))
        await made.stream.until_unsettled(0)
        for member in (first, second):
            await member.stop()
        made.assert_exact()
        made.assert_one_at_a_time()
        assert made.repeats() == 0
