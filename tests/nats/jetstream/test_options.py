"""The arguments of a JetStream source: each error names the argument, its value and the rule.

White box: the arguments as one value, without a source.

Proven here: consumer/C:C7, consumer/C:N9.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from sluicegate import ConfigError
from sluicegate.nats.jetstream.options import ReadOptions


def options(**given: Any) -> ReadOptions:
    usual: dict[str, Any] = {
        "stream": "ORDERS",
        "durable": "billing",
        "member": None,
        "subjects": None,
        "partitions": None,
        "key": "subject",
        "start": "earliest",
        "ack_wait": 30.0,
        "max_pending": 1_000,
        "prefetch": 500,
        "double_ack": False,
        "create": True,
        "domain": None,
    }
    arguments = {**usual, **given}
    return ReadOptions.of(arguments.pop("stream"), **arguments)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("stream", "", "must be text without spaces"),
        ("stream", "a.b", "must be text without spaces"),
        ("stream", None, "must be text without spaces"),
        ("durable", "a b", "must be text without spaces"),
        ("durable", "a>", "must be text without spaces"),
        ("durable", "x" * 201, "must be text without spaces"),
        ("member", "a/b", "must be text without spaces"),
        ("member", 7, "must be text without spaces"),
        ("domain", "a*", "must be text without spaces"),
        ("subjects", 7, "must be subjects"),
        ("subjects", "a..b", "must be subjects"),
        ("subjects", "", "must be subjects"),
        ("subjects", ["a", 2], "must be subjects"),
        ("subjects", {"a"}, "must be subjects"),
        ("partitions", 0, "must be a whole number of at least 1"),
        ("partitions", True, "must be a whole number of at least 1"),
        ("partitions", 1001, "must be at most 1000"),
        ("key", 0, "must be a whole number of at least 1"),
        ("key", "token", 'must be "subject"'),
        ("start", "first", 'must be "earliest", "latest"'),
        ("start", 0, 'must be "earliest", "latest"'),
        ("start", True, 'must be "earliest", "latest"'),
        ("start", datetime(2026, 1, 1), 'must be "earliest", "latest"'),  # without a zone
        ("ack_wait", 0, "must be more than 0 seconds"),
        ("ack_wait", 0.5, "must be at least 1 s"),
        ("ack_wait", "30", "must be more than 0 seconds"),
        ("max_pending", 0, "must be a whole number of at least 1"),
        ("prefetch", 0, "must be a whole number of at least 1"),
        ("prefetch", 1.5, "must be a whole number of at least 1"),
    ],
)
def test_a_bad_argument_is_told(name: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError) as raised:
        options(**{name: value})
    told = str(raised.value)
    assert told.startswith(f"{name}={str(repr(value))[:50]}")
    assert rule in told


def test_subjects_and_partitions_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"^subjects='a': cannot be given with partitions="):
        options(subjects="a", partitions=2)


def test_a_stream_that_is_not_divided_has_one_consumer() -> None:
    made = options(subjects=["a.*", "b.>"], ack_wait=timedelta(seconds=5), start="latest")
    assert (made.count, made.consumer(0), made.filters(0)) == (1, "billing", ["a.*", "b.>"])
    assert (made.ack_wait, made.prefetch) == (5.0, 500)
    assert options(subjects="a").filters(0) == ["a"]
    assert options().filters(0) == []


def test_a_divided_stream_has_a_consumer_for_each_partition() -> None:
    made = options(partitions=3, member="me", domain="hub")
    assert (made.count, made.member, made.domain) == (3, "me", "hub")
    assert (made.consumer(2), made.filters(2)) == ("billing-2", ["2.>"])


def test_no_more_is_fetched_ahead_than_may_be_pending() -> None:
    """consumer/O7, consumer/C:C7."""
    assert options(prefetch=500, max_pending=20).prefetch == 20


def test_a_member_has_a_name_of_its_own() -> None:
    one, two = options().member, options().member
    assert one != two
    assert options(member=one).member == one


@pytest.mark.parametrize(
    ("start", "first", "wanted"),
    [
        ("earliest", None, {"deliver_policy": "all"}),
        ("latest", None, {"deliver_policy": "new"}),
        (17, None, {"deliver_policy": "by_start_sequence", "opt_start_seq": 17}),
        ("latest", 5, {"deliver_policy": "by_start_sequence", "opt_start_seq": 5}),
        (
            datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))),
            None,
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-02T01:00:00Z"},
        ),
        (
            datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
            None,
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-02T03:04:05.000678Z"},
        ),
    ],
)
def test_a_new_consumer_begins_where_it_is_told(
    start: object, first: int | None, wanted: dict[str, object]
) -> None:
    assert options(start=start).where(0, first) == wanted
