"""Keys of messages, and the transform that partitions a stream. White box: the key's place in a
subject.

Proven here: consumer/C:N9.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluicegate import ConfigError
from sluicegate.nats.jetstream.options import key_function, partitioned, partitions_of


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("subject", "orders.eu.17"),
        (1, "orders"),
        (3, "17"),
        (4, ""),
        ((3, 1), "17.orders"),
        ([2, 9], "eu."),
        ("header:Tenant", "acme"),
        ("header:Other", None),
        (lambda subject, headers: (subject[:2], len(headers)), ("or", 1)),
    ],
)
def test_a_key_is_of_the_subject_or_the_headers(key: Any, wanted: object) -> None:
    assert key_function(key)("orders.eu.17", {"Tenant": "acme"}) == wanted


async def asynchronous(subject: str, headers: object) -> str:
    return f"{subject}{headers}"


@pytest.mark.parametrize(
    "key",
    [None, "", "header:", "token", 0, -1, True, 1.5, (), [], (1, 0), (1, "2"), len, asynchronous],
)
def test_another_key_is_refused(key: object) -> None:
    """The error names the argument, the value and the rule."""
    with pytest.raises(ConfigError, match=r"^key=.+: must be "):
        key_function(key)


def test_a_stream_is_divided_by_tokens_of_its_subjects() -> None:
    assert partitioned("orders.*", 8) == ("orders.*", "{{partition(8,1)}}.orders.{{wildcard(1)}}")
    assert partitioned("*.orders.*", 3, (2, 1)) == (
        "*.orders.*",
        "{{partition(3,2,1)}}.{{wildcard(1)}}.orders.{{wildcard(2)}}",
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("", 8), "subject='': must be text"),
        ((None, 8), "subject=None: must be text"),
        (("orders", 8), "subject='orders': must have a *"),
        (("orders.>", 8), "subject='orders.>': must have a *"),
        (("orders.*.>", 8), "and no >"),
        (("orders.*", 0), "partitions=0: must be a whole number of at least 1"),
        (("orders.*", "8"), "partitions='8': must be a whole number of at least 1"),
        (("orders.*", 8, ()), "tokens=(): must name at least one"),
        (("orders.*", 8, (0,)), "tokens=0: must be a whole number of at least 1"),
        (("orders.*", 8, (2,)), "tokens=(2,): 'orders.*' has only 1 *"),
    ],
)
def test_a_bad_division_is_refused(arguments: Any, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        partitioned(*arguments)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("destination", "partitions"),
    [
        (partitioned("orders.*", 8)[1], 8),
        ("{{ Partition( 12 , 1 ) }}.orders.{{wildcard(1)}}", 12),
        ("{{partition(5)}}.orders", 5),
        ("orders.{{partition(8,1)}}", None),
        ("orders.{{wildcard(1)}}", None),
        ("", None),
    ],
)
def test_the_number_of_partitions_is_read_from_the_transform(
    destination: str, partitions: int | None
) -> None:
    assert partitions_of(destination) == partitions
