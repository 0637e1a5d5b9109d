"""The meaning of drivers' errors when reading or maintaining a log, by SQLSTATE. Pure."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...._core.checks import bad
from ...._core.classify import caused
from ...._core.errors import RefusedError
from .append import NO_RIGHT, NOT_INSTALLED, Fault

if TYPE_CHECKING:
    from collections.abc import Generator

    from ...._core.errors import SluicegateError

WRONG_HORIZON = "PS004"
_NO_TABLE = frozenset({"42P01", "42703"})
"""Missing table or column."""


def read_fault(schema: str, error: Exception, repair: str) -> SluicegateError | None:
    """Return the error to raise for a driver's error; `None` for any other."""
    found = Fault.behind(error)
    if found is None:
        return None
    if found.state == WRONG_HORIZON:
        return caused(bad("connection", "...", found.message), error)
    if found.state in NOT_INSTALLED | _NO_TABLE:
        install = f"sluicegate pg install --schema {schema}, in the database of this connection"
        return caused(RefusedError(f"no log to read: {found.message}", repair=install), error)
    if found.state == NO_RIGHT:
        return caused(RefusedError(f"not allowed: {found.message}", repair=repair), error)
    return None


@contextmanager
def read_told(schema: str, repair: str | None = None) -> Generator[None]:
    """Raise the errors of `read_fault` instead of the driver's, and other errors unchanged.

    `repair` is the remedy for a role without the right; by default, to grant it the right to read.
    """
    try:
        yield
    except Exception as error:
        give = f"sluicegate pg install --schema {schema} --read ROLE, as the owner of the schema"
        found = read_fault(schema, error, repair or give)
        if found is None:
            raise
        raise found  # noqa: B904  # it has its cause
