"""A consumer in its own process that is stopped during its work.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.kafka.source.child_help import consumer_child
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored

from sluicegate.consumer import Position, TopicPartition
from sluicegate.consumer.progress import offset_map

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

COUNT = 3_000
STUCK = 100


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    log: str
    finished: set[int]
    position: Position

    @property
    def covered(self) -> set[int]:
        """The offsets covered by the stored position and map."""
        offset, metadata = self.position
        known = set(range(offset))
        for low, high in offset_map.decode(offset, metadata):
            known.update(range(low, high))
        return known


async def ended(
    broker: EmbeddedKafka, audit: Path, *signals: signal.Signals, stuck: int, **options: object
) -> Ended:
    """Send these signals in turn to a consumer during its work."""
    topic, group = await new_topic(broker), new_name("drained")
    await fill(broker, topic, COUNT)
    given = {"stuck": stuck, "pause": 0.002, **options}
    async with consumer_child(broker, topic, group, audit, **given) as child:
        await child.until(lambda told: told["acked"] >= STUCK)
        for sign in signals:
            await child.until(lambda told: told["received"] > 0)  # it processed the last one
            child.process.send_signal(sign)
        await child.until(lambda told: told["event"] == "ended")
        log = await child.errors()
        code = await child.process.wait()
        finished = set(child.finished())
    found = await stored(broker, group)
    return Ended(code, log, finished, found[TopicPartition(topic, 0)])


async def test_a_signal_stores_exactly_what_was_finished(
    broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """consumer/C:B3, consumer/C:C5: exit code 0 after a complete drain."""
    left = await ended(broker, tmp_path / "audit", signal.SIGTERM, stuck=-1)
    assert left.code == 0, left.log
    assert STUCK <= len(left.finished) < COUNT
    assert left.covered == left.finished


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_drain_and_stores_what_was_finished(
    broker: EmbeddedKafka, tmp_path: Path, sign: signal.Signals
) -> None:
    """consumer/C:B3: the report names the record that was cut."""
    left = await ended(broker, tmp_path / "audit", sign, sign, stuck=STUCK)
    assert left.code == 1, left.log
    assert f"@{STUCK} " in left.log.splitlines()[-1]
    assert left.covered == left.finished
    assert STUCK not in left.covered


async def test_a_handler_that_ignores_its_cancellation_runs_again(
    broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """consumer/O33, consumer/C:C5: its result after the cancellation does not count; it runs
    again.
    """
    options = {"ignores": True, "drain": 0.3}
    left = await ended(broker, tmp_path / "audit", signal.SIGTERM, stuck=STUCK, **options)
    assert left.code == 1, left.log
    assert left.covered == left.finished - {STUCK}
