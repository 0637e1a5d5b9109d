"""The access of a test, from its options."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from sluicegate.postgres import PostgresAccess

_OPTIONS = {each.name for each in fields(PostgresAccess)} - {"dsn"}


def access_from(
    dsn: str | PostgresAccess | None, options: dict[str, Any]
) -> str | PostgresAccess | Any:
    """Take the options of an access out of `options`; return the DSN, or an access with them."""
    given = {name: options.pop(name) for name in _OPTIONS & options.keys()}
    if not given:
        return dsn
    return (
        replace(dsn, **given) if isinstance(dsn, PostgresAccess) else PostgresAccess(dsn, **given)
    )
