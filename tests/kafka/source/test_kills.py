"""The records repeated after `kill -9`: exactly those unknown to the last commit.

White box: the map beside a committed position is decoded.

`SLUICEGATE_KILLS=100 pytest -m soak tests/kafka/source/test_kills.py` kills at 100 random moments.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.kafka.source.child_help import consumer_child
from tests.kafka.source.consumer_child import COMMIT_EVERY, TELL_EVERY
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored

from sluicegate.consumer import TopicPartition
from sluicegate.consumer.progress import offset_map

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

BEHIND = 50_000
STUCK = 5
TWO_COMMITS = round(2 * COMMIT_EVERY / TELL_EVERY)
"""Lines of a child."""
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "10"))


class Runs(NamedTuple):
    """The records that a killed consumer had finished and stored, and those that the next one
    handled.
    """

    position: int
    ranges: list[tuple[int, int]]
    first: list[int]
    second: list[int]
    received: int
    skipped: int
    replayed: int

    @property
    def covered(self) -> set[int]:
        """The offsets covered by the stored position and map."""
        known = set(range(self.position))
        for low, high in self.ranges:
            known.update(range(low, high))
        return known


async def killed_and_continued(
    broker: EmbeddedKafka,
    path: Path,
    topic: str,
    count: int,
    *,
    moments: Sequence[int],
    lines: int = 0,
    stuck: int = -1,
    pause: float = 0.0,
) -> Runs:
    """Kill consumers after this many finished records and this many further lines; then run one to
    the end.

    Each has the static name of the previous one, so it need not wait for a session to expire.
    """
    group, partition = new_name("killed"), TopicPartition(topic, 0)
    same = {"instance": "only", "pause": pause}
    first: list[int] = []
    for moment in moments:
        async with consumer_child(broker, topic, group, path / "1", stuck=stuck, **same) as child:
            await child.until(_told_of(moment))
            for _ in range(lines):
                await child.until(lambda told: True)
            await child.kill()
        first = child.finished()
    position, metadata = (await stored(broker, group)).get(partition, (0, ""))
    ranges = offset_map.decode(position, metadata)
    async with consumer_child(broker, topic, group, path / "2", **same) as child:
        told = await child.until(lambda told: told["committed"] == count)
        second = await child.kill()
    figures = (told["received"], told["skipped"], told["replayed"])
    return Runs(position, ranges, first, second, *figures)


def _told_of(finished: int) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["received"] > 0 and told["acked"] >= finished


def assert_exact(runs: Runs, count: int) -> None:
    everything = set(range(count))
    assert runs.covered <= set(runs.first), "something was stored that was not finished"
    assert sorted(runs.second) == sorted(everything - runs.covered)
    assert set(runs.first) | set(runs.second) == everything
    end = runs.ranges[-1][1] if runs.ranges else runs.position
    assert runs.skipped == len(runs.covered) - runs.position
    assert runs.replayed == end - runs.position - runs.skipped


@pytest.mark.long
async def test_after_two_kills_the_stuck_record_runs_and_none_of_those_behind_it(
    broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """consumer/C:N1, consumer/C:N6, O-T5: 50,000 records are finished and stored behind a stuck
    one. The second start finishes nothing and skips the others; the third one still knows them.
    """
    topic, count = await new_topic(broker), STUCK + 1 + BEHIND
    await fill(broker, topic, count)
    runs = await killed_and_continued(
        broker, tmp_path, topic, count, moments=(count - 1, 0), lines=TWO_COMMITS, stuck=STUCK
    )
    assert_exact(runs, count)
    assert (len(runs.first), runs.second) == (count - 1, [STUCK])
    assert runs.received <= 500, "one fetch"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
async def test_a_kill_at_a_random_moment_repeats_exactly_what_was_not_stored(
    broker: EmbeddedKafka, tmp_path: Path, seed: int
) -> None:
    """consumer/C:N1, consumer/C:C5, consumer/C:N6."""
    await kill_at_random(broker, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 2 + KILLS))
async def test_many_kills_at_random_moments(
    broker: EmbeddedKafka, tmp_path: Path, seed: int
) -> None:
    """consumer/C:N1: half of the runs have a stuck record."""
    await kill_at_random(broker, tmp_path, seed)


async def kill_at_random(broker: EmbeddedKafka, path: Path, seed: int) -> None:
    rnd, count = random.Random(seed), 12_000
    stuck = rnd.choice([-1, rnd.randrange(count // 2)])
    topic = await new_topic(broker)
    await fill(broker, topic, count)
    moment = rnd.randrange(1, count - 1)
    runs = await killed_and_continued(
        broker, path, topic, count, moments=(moment,), stuck=stuck, pause=0.0005
    )
    assert_exact(runs, count)
