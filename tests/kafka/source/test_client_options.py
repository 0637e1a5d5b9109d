"""Options of the client, as passed to aiokafka. White box: the options as passed on."""

from __future__ import annotations

from sluicegate.kafka import KafkaAccess
from sluicegate.kafka.client.options import MemberOptions


def options(**client: object) -> MemberOptions:
    return MemberOptions.of(
        access=KafkaAccess("localhost:9092"),
        group="group",
        instance=None,
        session_timeout=45.0,
        rebalance_timeout=60.0,
        max_poll_interval=300.0,
        commit_timeout=5.0,
        client=client,
    )


def test_an_empty_partition_holds_the_fetches_of_others_back_for_a_tenth_of_a_second() -> None:
    assert options().arguments()["fetch_max_wait_ms"] == 100


def test_how_long_fetches_are_held_back_may_be_chosen() -> None:
    assert options(fetch_max_wait_ms=500).arguments()["fetch_max_wait_ms"] == 500
