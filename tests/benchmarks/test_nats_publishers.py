"""A result of a publisher counts only if the stream contains all of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.cases import CASES as LISTED
from benchmarks.cases.nats.sink import CASE, WAYS
from benchmarks.nats.publishers import sink, turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.nats.publishers import Publish
    from benchmarks.stopwatch import Took

    from sluicegate.testing import EmbeddedNats

PAYLOADS = [b"%d" % number for number in range(30)]


def test_the_case_is_listed() -> None:
    assert CASE in LISTED


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_way_publishes_every_message(embedded_nats: EmbeddedNats, way: Publish) -> None:
    assert turn(way, embedded_nats.url, PAYLOADS).processor > 0


def test_a_message_that_is_missing_is_no_figure(embedded_nats: EmbeddedNats) -> None:
    async def short(url: str, payloads: Sequence[bytes]) -> Took:
        return await sink(url, payloads[1:])

    with pytest.raises(AssertionError, match="29 of 30 messages"):
        turn(short, embedded_nats.url, PAYLOADS)
