"""The table that Confluent publishes for its parallel consumer, with Sluicegate's figures added."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ...harness import MS, Case, CaseUnavailableError, placed
from ...kafka.topics import a_broker, fill
from ...kafka.workloads import KEYS, MESSAGES, OURS, PYRALLEL, WIDE, waiting_name, waiting_topic
from .source import PACKAGES, members, take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Contender

PUBLISHED = "Confluent's, as published"
SECONDS = {
    1: 26.743,
    2: 13.576,
    5: 5.916,
    10: 3.310,
    20: 2.242,
    50: 2.204,
    100: 2.178,
    1_000: 2.056,
    10_000: 2.128,
}
"""By the number of keys: github.com/confluentinc/parallel-consumer, README.adoc, "Illustrative
Performance Example" (ordering by key, its default options: 100 at once, 16 threads).
"""
FROM = {OURS: 1, PYRALLEL: 10, WIDE: 1_000}
"""The smallest number of keys per way: with fewer, its time is that of the handlers."""


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    share = min(1.0, count / MESSAGES)
    keys_of = [keys for keys in KEYS if share == 1.0 or keys >= 10]
    with (
        a_broker() as broker,
        members(broker.bootstrap, peers=[PACKAGES[PYRALLEL]]) as processes,
    ):
        if not processes:
            raise CaseUnavailableError("aiokafka could not be installed")
        for keys in keys_of:
            fill(broker, waiting_topic(keys), count, keys=keys)
        worker, made = [*processes.values()][-1]
        yield [
            *(placed(PUBLISHED, keys, partial(_published, keys)) for keys in keys_of),
            *(
                placed(
                    line, keys, partial(take, worker, waiting_name(line, keys), share), ours=ours
                )
                for line, ours in ((OURS, True), (WIDE, True), (PYRALLEL, False))
                if line not in PACKAGES or made.has(PACKAGES[line])
                for keys in keys_of
                if keys >= FROM[line]
            ),
        ]


def _published(keys: int) -> float:
    return SECONDS[keys]


CASE = Case(
    name="kafka-keys",
    title="10,000 messages of 0 to 5 ms each, one partition, by the number of keys",
    prepare=prepare,
    items=MESSAGES,
    quick_items=200,
    unit=MS,
    peers=(PUBLISHED,),
    along="keys",
    is_drawn=False,
)
