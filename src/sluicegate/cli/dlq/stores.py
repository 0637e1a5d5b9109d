"""The store named on the command line: a PostgreSQL DSN, a file's path, or a URL of objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..._core.addresses import UNSET
from ..._core.checks import bad
from ..._core.text import hide
from ...letters.store import StoreError
from . import SCHEMES, FileStore, ObjectStore, PostgresStore, table_name

if TYPE_CHECKING:
    from ...letters.store import Store


def store_of(name: str, table: str, schema: str | None) -> Store:
    """Return the store. Raises `StoreError` for other names, `ConfigError` for a bad table."""
    if is_url_of_objects(name):
        return ObjectStore(name)
    if not is_dsn(name):
        return FileStore(path_of(name))
    schema, table = table_of(table, schema)
    return PostgresStore(name, table, schema)


def table_of(table: str, schema: str | None) -> tuple[str | None, str]:
    """Return the schema and table of `--table` and `--schema`. Raises `ConfigError`."""
    own, name = table_name("--table", table)
    if own is not None and schema is not None:
        raise bad(
            "--table",
            table,
            'must be a table without its schema if --schema is given; quote a name with a dot: "..."',
        )
    return own or schema, name


def is_dsn(name: str) -> bool:
    """Return whether it names a database."""
    return name.startswith(("postgresql:", "postgres:"))


def is_url_of_objects(name: str) -> bool:
    """Return whether it names a folder of an object store."""
    return name.partition("://")[0] in SCHEMES


def path_of(name: str) -> Path:
    """Return the path of a file. Raises `StoreError`."""
    if not name:
        raise StoreError(f"the name of the store is empty; {UNSET}")
    if hide(name) != name or "\0" in name:
        raise StoreError(
            f"{hide(name)}: a store is the path of a file, or begins with postgresql://, "
            "or with s3://, gs://, az:// or file:// for objects"
        )
    return Path(name)
