"""The arguments of `sluicegate dlq`: the store, the selection of letters, and the rest.

A store is a PostgreSQL DSN, or the path of a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..._core.addresses import UNSET
from ..._core.checks import bad
from ..._core.errors import ErrorClass
from ..._core.text import hide
from ...letters.letter import INTERRUPTED, PENDING, REPLAYED, STATES, Selection
from ...letters.store import StoreError
from ..console import UseError
from ..parser import DSN, count, when
from . import FileStore, PostgresStore

if TYPE_CHECKING:
    import argparse

    from ...letters.store import Store
    from ..parser import Parser

_EXAMPLES = {
    "list": "dead.jsonl --error-type NotNullViolationError",
    "show": "dead.jsonl 7f3a",
    "replay": f"{DSN} --to app:sink --limit 100",
    "purge": f"{DSN} --state all --until 90d",
    "init": DSN,
}


def dlq_options(parser: Parser) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("dlq_command")
    texts = {
        "list": "print one line per letter",
        "show": "print all fields of some letters, as JSON",
        "replay": "send letters through a stack of sinks; run it again to continue an "
        "interrupted replay",
        "purge": "remove letters permanently; by default the replayed ones",
        "init": "create the table for dead letters",
    }
    for name, text in texts.items():
        command = add(name, text, f"sluicegate dlq {name} {_EXAMPLES[name]}")
        command.add_argument(
            "store",
            help="path of a file written by FileSink; or postgresql://..., whose missing parts come "
            "from PG* variables",
        )
        _table_options(command)
        if name == "show":
            command.argument(
                "letters", "LETTER", "a letter's own key, or a prefix of it", nargs="+"
            )
        if name != "init":
            _filters(command, name)
        if name in {"list", "replay"}:
            command.argument("--limit", "N", "at most N letters", type=count)
        if name == "list":
            command.flag("--json", "print all fields, one line of JSON per letter")
        if name == "init":
            command.flag("--dry-run", "change nothing; print the statement")
        if name == "purge":
            command.flag("--yes", "do not ask before removing letters that were not replayed")
        if name == "replay":
            _replay_options(command)


def _table_options(parser: Parser) -> None:
    parser.add_argument(
        "--table", default="dead_letters", help="the table, with PostgreSQL (default: dead_letters)"
    )
    parser.add_argument("--schema", help="the table's schema (default: found by the search path)")


def _filters(parser: Parser, name: str) -> None:
    if name == "show":
        parser.set_defaults(state="all")
        return
    if name == "replay":
        parser.set_defaults(state="left")
    else:
        state = "left" if name == "list" else REPLAYED
        parser.add_argument(
            "--state",
            choices=[*STATES, "left", "all"],
            default=state,
            help=f"letters in this state; left is pending or interrupted (default: {state})",
        )
    parser.several("--key", "KEY", "letters of items with this key, as `list` prints it")
    parser.several("--letter", "LETTER", "letters whose own key begins with LETTER")
    parser.add_argument("--batcher", help="letters from the batcher of this name")
    parser.add_argument("--tenant", help="letters of this tenant, as text or JSON")
    parser.argument("--error-type", "NAME", "name of the Python class of the error or of its cause")
    parser.argument("--code", "CODE", "SQLSTATE or HTTP status: 23502, 422")
    parser.argument(
        "--error-class",
        "CLASS",
        f"the error's class: {', '.join(each.value for each in ErrorClass)}",
        choices=[each.value for each in ErrorClass],
    )
    parser.argument("--message", "TEXT", "text contained in the error's message")
    parser.argument(
        "--since",
        "TIME",
        "last attempt at or after TIME: 2026-01-31T12:00, or 90m, 12h, 7d ago",
        type=when,
    )
    parser.argument("--until", "TIME", "last attempt before TIME", type=when)


def _replay_options(parser: Parser) -> None:
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument(
        "--to",
        metavar="MODULE:NAME",
        help="a sink, a stack, a function of a batch, or a function that returns one of these",
    )
    targets.add_argument(
        "--handler",
        metavar="MODULE:NAME",
        help="the handler of the consumer that wrote the letters: a function of one message, async "
        "or plain; with the consumer's steps as with_steps(handler, ...). A handler of lists "
        "(run_batch) needs a function of one message around it",
    )
    parser.argument(
        "--decode",
        "MODULE:NAME",
        "with --to: a function that converts decoded JSON into an item",
    )
    parser.argument(
        "--batch-size",
        "ITEMS",
        "letters per batch (default: 500); with --handler, messages of different keys that "
        "are handled at once (default: 1)",
        type=count,
    )
    parser.flag("--any-order", "send letters of a key even if earlier ones remain")
    parser.flag(
        "--at-least-once",
        "with --to: send letters that may have been delivered as if they had not been",
    )


def selection_of(options: argparse.Namespace) -> Selection:
    """Build the selection of letters from the arguments. Raises `UseError`."""
    states = {"all": frozenset(STATES), "left": frozenset({PENDING, INTERRUPTED})}.get(
        options.state
    ) or frozenset({options.state})
    if options.dlq_command == "show":
        return Selection(states=states, letters=tuple(options.letters))
    names = ("batcher", "tenant", "error_type", "error_class", "code", "message", "since", "until")
    given = {name: getattr(options, name) for name in names}
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise UseError("--since must be before --until")
    return Selection(states=states, letters=tuple(options.letter), keys=tuple(options.key), **given)


def store_of(name: str, table: str, schema: str | None) -> Store:
    """Return the store of dead letters with this name, not opened.

    A PostgreSQL DSN is a `PostgresStore` with this table and schema, and anything else the path of
    a `FileStore`. Raises `StoreError` for any other URL, and `ConfigError` for a
    bad table.
    """
    if not is_dsn(name):
        return FileStore(path_of(name))
    return PostgresStore(name, check_table(table), schema)


def check_table(table: str) -> str:
    """Check the name of `--table`. Raises `ConfigError`."""
    if "." in table:
        raise bad("--table", table, "must be a name without its schema; give that by --schema")
    return table


def is_dsn(name: str) -> bool:
    """Return whether it names a database."""
    return name.startswith(("postgresql:", "postgres:"))


def path_of(name: str) -> Path:
    """Return the path of a file. Raises `StoreError`."""
    if not name:
        raise StoreError(f"the name of the store is empty; {UNSET}")
    if hide(name) != name or "://" in name or "\0" in name:
        raise StoreError(
            f"{hide(name)}: a store is the path of a file, or begins with postgresql://; copy "
            "objects and records of a topic to a file first"
        )
    return Path(name)
