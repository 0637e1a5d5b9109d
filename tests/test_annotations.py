"""Every type in a public signature is exported, or described in the reference."""

from __future__ import annotations

import re
from functools import cache

from tests.annotations import hidden, signatures

OURS = {
    r"sluicegate\.(consumer\.)?Message\.__init__": "messages are made by a consumer",
    r"sluicegate\.batcher\.feed\.(Feed|Submission)\.__init__": "made by `Batcher.feed`",
    r"sluicegate\.batcher\.feed\.Feed\.landed": "awaited by a pipe",
    r"sluicegate\.batcher\.feed\.Submission\.turn_away": "called by the feed",
    r"sluicegate\.postgres\.(\w+\.)*\w+Admin\.__init__": "parts of a `QueueAdmin`",
    r"sluicegate\.postgres\.postgres_columns\(schema\)": "a `StructType` of Spark",
    r"sluicegate\.postgres\.StreamNotifier\.__init__": "made by `StreamLog`",
    r"sluicegate\.consumer\.(probes|serve_probes|operating\.probes\.Probes\.__init__)\b": "they take consumers and pipes",
    r"sluicegate\.console\.Console\.__init__\(parts\)": "it takes consumers and pipes",
    r"sluicegate\.console\.Console\.__call__": "the interface of ASGI",
    r"sluicegate\.consumer\.operating\.explain\.(Partition)?Explanation\b": "its causes are read by their attributes",
    r"sluicegate\.(\w+\.)*(__init__|pipe|run_batch|transaction)\(options\)": "keywords that are shown one by one",
    r"sluicegate\.\w*Batch\.__init__\(delivery\)": "given by the batcher, and left out otherwise",
    r"sluicegate\.(\w*Batch\.(__init__\()?|WriteResult\.)lineage": "the origin of a batch is the batcher's own",
    r"sluicegate\.\w*Batch\.(child|fork)": "used as a context manager, by combinators",
    r"sluicegate\.\w*Batch\.back_off\(signals\)": "given by the library's decorators",
    r"sluicegate\.(\w+\.)*([tT]ransaction\(unit\)|Transaction\w*\.(unit|transaction))": "a flow gives a unit of positions",
    r"sluicegate\.(kafka|postgres|sinks)\.(Kafka|Postgres)Sink\.transaction": "a flow gives a unit of positions",
    r"sluicegate\.postgres\.PostgresQueueSource\.move_to": "called by a flow",
    r"sluicegate\.consumer\.jobs\.EventContext\.__init__": "made by a consumer",
    r"sluicegate\.consumer\.jobs\.(ItemBatcher|JobScheduler)\.begin": "called by the consumer",
    r"sluicegate\.consumer\.operating\.probes\.Probes\.__call__": "the interface of ASGI",
    r"sluicegate\.(postgres\.Postgres|sql\.SQLite)Effects\.(transaction|write)": "called by `flow.transaction`",
    r"sluicegate\.testing\.conformance\.SourceConformance\.\w+": "called by the suite's own tests",
    r"sluicegate\.flow\.Spool\.in_front_of": "called by the batcher",
    r"sluicegate\.flow\.spooling\.(sinks\.SpoolSink|source\.SpoolSource)\.__init__": "made by a `Spool`",
    r"sluicegate\.flow\.spooling\.source\.SpoolSource\.decoded": "called by the sender",
    r"pyspark_sluicegate\.DefaultSource\.\w+": "called by Spark",
}
"""Beginnings of signatures that only the library uses, with reasons."""


@cache
def found() -> list[tuple[str, str]]:
    return [
        (where, name)
        for where, text, module in signatures()
        for name in sorted(hidden(text, module))
    ]


def test_every_type_of_a_public_signature_is_known() -> None:
    """If this fails, add a line to the API reference; export the type from its natural package if
    programs construct, subclass, catch or compare it.
    """
    assert [
        (where, name) for where, name in found() if not any(re.match(own, where) for own in OURS)
    ] == []


def test_each_exception_is_needed() -> None:
    signatures_found = [where for where, _ in found()]
    assert [
        own for own in OURS if not any(re.match(own, where) for where in signatures_found)
    ] == []


def test_a_private_type_is_found_where_a_public_one_is_not() -> None:
    """Both are imported for type checkers only, in a module that names them."""
    module = "sluicegate.postgres.sink.sink"
    assert hidden("dict[str, Unit | RowFunction] | None", module) == set()
    assert hidden("tuple[OpenTable, ...]", module) == {
        "sluicegate.postgres.sink.open_table.OpenTable"
    }


def test_many_signatures_are_read() -> None:
    assert len([*signatures()]) > 2000
