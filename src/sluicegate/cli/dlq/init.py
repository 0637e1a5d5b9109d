"""`sluicegate dlq init`: create the table of dead letters, or add its missing columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exits import OK
from . import prepare
from .output import encodable, say
from .stores import is_dsn, is_url_of_objects, path_of, table_of

if TYPE_CHECKING:
    import argparse

    from . import Prepared


async def init(options: argparse.Namespace) -> int:
    """Prepare the store and report the changes; return the exit code. Raises `StoreError`."""
    if is_url_of_objects(options.store):
        say(f"{options.store}: nothing to do, ObjectSink needs no preparation")
        return OK
    if not is_dsn(options.store):
        path = path_of(options.store)
        say(f"{path}: nothing to do, FileSink creates a file of dead letters itself")
        return OK
    schema, table = table_of(options.table, options.schema)
    prepared = await prepare(options.store, table, schema, dry_run=options.dry_run)
    if options.dry_run:
        for statement in prepared.statements:
            print(encodable(f"{statement};"))
    say(_told(prepared, is_done=not options.dry_run))
    return OK


def _told(prepared: Prepared, *, is_done: bool) -> str:
    if not prepared.statements:
        return f"{prepared.table} is up to date already"
    if prepared.is_new:
        return f"{'created' if is_done else 'would create'} the table {prepared.table}"
    columns = ", ".join(prepared.columns)
    return f"{'added' if is_done else 'would add'} to {prepared.table}: {columns}"
