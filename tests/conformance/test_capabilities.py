"""The declarations of sources: every source has one, it matches the implementation, and the page
shows it.

White box: the comparison that the suite makes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.table import CALLS, PAGE, READ, SETTLED, page, sources

from sluicegate.consumer import MemoryLog, MemorySource, Source, SourceCapabilities
from sluicegate.errors import MissingExtra
from sluicegate.files import FileSource
from sluicegate.kafka import ConfluentKafkaSource, KafkaSource
from sluicegate.nats import JetStreamSource
from sluicegate.postgres import PostgresQueueSource, PostgresStreamSource
from sluicegate.testing.conformance.source.delivery import contradictions

if TYPE_CHECKING:
    from collections.abc import Callable

MADE: dict[type, Callable[[], Source]] = {
    FileSource: lambda: FileSource("events"),
    MemorySource: lambda: MemorySource(MemoryLog(), ack_wait=30.0),
    KafkaSource: lambda: KafkaSource("t", bootstrap="127.0.0.1:1", group="g"),
    ConfluentKafkaSource: lambda: ConfluentKafkaSource("t", bootstrap="127.0.0.1:1", group="g"),
    JetStreamSource: lambda: JetStreamSource("s", servers="nats://127.0.0.1:1", durable="d"),
    PostgresStreamSource: lambda: PostgresStreamSource("postgresql://h/d", subscription="s"),
    PostgresQueueSource: lambda: PostgresQueueSource("postgresql://h/d", queue="q"),
}


def test_every_source_of_the_package_is_found() -> None:
    assert {*MADE} == {*sources().values()}, "MADE has the sources of the package, to compare them"


@pytest.mark.parametrize("name", sorted(sources()))
def test_a_declaration_is_what_the_class_implements(name: str) -> None:
    """consumer/O30."""
    try:
        source = MADE[sources()[name]]()
    except MissingExtra as missing:
        pytest.skip(str(missing))
    assert contradictions(source.capabilities, source) == []


def test_sources_are_found_by_their_calls() -> None:
    assert all(hasattr(Source, call) for call in CALLS)


def test_the_page_is_up_to_date() -> None:
    """Regenerate it with `PYTHONPATH=src python -m tests.conformance.table`."""
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/reference/sources.md differs from the declarations: write it anew by "
        "`PYTHONPATH=src python -m tests.conformance.table`"
    )


def test_every_capability_has_a_column() -> None:
    """There are as many columns as features, and each changes with its field."""
    columns = {**READ, **SETTLED}
    of_the_consumer = {"keep_alive_every", "revoke_within", "extend_every", "foreign_map"}
    every = dataclasses.fields(SourceCapabilities)
    fields = [field for field in every if field.name not in of_the_consumer]
    assert len(columns) == len(fields)
    nothing = SourceCapabilities()
    values: dict[str, Any] = {
        "starts": frozenset({"end"}),
        "lag": "ends",
        "shares": "keys",
        "transactions": "records",
    }
    for field in fields:
        changed = dataclasses.replace(nothing, **{field.name: values.get(field.name, True)})
        told = [name for name, tell in columns.items() if tell(changed) != tell(nothing)]
        assert len(told) == 1, field.name
