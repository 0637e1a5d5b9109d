"""The call of the log's function `append` for every driver, and its answer.

1. Placeholders differ by driver, so the statement is created from a template for each: `$1`
   (asyncpg), `%s` (psycopg) and `:p1` (SQLAlchemy, with any driver).
2. Parameters and results have types that all drivers and codecs convert in the same way: text,
   whole numbers and booleans.
3. Errors are recognised by their SQLSTATE, which each driver stores in a different place.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from ...._core.checks import bad
from ...._core.classify import caused, causes
from ...._core.errors import MessageIdConflict, RefusedError, VersionConflict
from ...._core.text import text_of
from ...client.names import quoted
from .message import Appended

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .message import NewMessage

WRONG_VERSION = "PS001"
OTHER_CONTENTS = "PS002"
BAD_MESSAGE = "PS003"
NO_RIGHT = "42501"
NOT_INSTALLED = frozenset({"3F000", "42883"})
"""Missing schema, missing function."""
UNIQUE = "23505"
ID_CONSTRAINT = "message_id"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CALL = (
    "SELECT r_position, r_version, CAST(r_id AS text), "
    "CAST(extract(epoch FROM r_at) * 1000000 AS bigint), r_is_new "
    "FROM {schema}.append(CAST({0} AS text), CAST(CAST({1} AS text) AS jsonb), "
    "CAST({2} AS bigint))"
)


class AppendCall(NamedTuple):
    """One call of `append`."""

    schema: str
    stream: str
    messages: str
    """A JSON array."""
    expected: int | None

    @property
    def values(self) -> tuple[str, str, int | None]:
        """The parameters, in order."""
        return self.stream, self.messages, self.expected

    @property
    def named_values(self) -> dict[str, str | int | None]:
        """The parameters of `named`."""
        return dict(zip(("p1", "p2", "p3"), self.values, strict=True))

    @property
    def numbered(self) -> str:
        """The statement with `$1`."""
        return _CALL.format("$1", "$2", "$3", schema=quoted(self.schema))

    @property
    def formatted(self) -> str:
        """The statement with `%s`."""
        return _CALL.format("%s", "%s", "%s", schema=quoted(self.schema))

    @property
    def named(self) -> str:
        """The statement with `:p1`."""
        return _CALL.format(":p1", ":p2", ":p3", schema=quoted(self.schema))

    def appended(self, rows: Iterable[Sequence[Any]]) -> list[Appended]:
        """Return the rows of the answer."""
        return [
            Appended(position, version, UUID(id_), _EPOCH + timedelta(microseconds=at), is_new)
            for position, version, id_, at, is_new in rows
        ]

    def told(self, error: Exception) -> Exception:
        """Return the error to raise for a driver's error; any other is returned unchanged."""
        found = Fault.behind(error)
        if found is None:
            return error
        if found.state == WRONG_VERSION:
            expected = -1 if self.expected is None else self.expected
            conflict = VersionConflict(self.stream, expected=expected, actual=int(found.detail))
            return caused(conflict, error)
        if found.state == OTHER_CONTENTS or (
            found.state == UNIQUE and found.constraint == ID_CONSTRAINT
        ):
            return caused(MessageIdConflict(self.stream, found.message), error)
        if found.state == BAD_MESSAGE:
            return caused(bad("messages", "...", found.message), error)
        if found.state in NOT_INSTALLED or found.state == NO_RIGHT:
            return self._refused(found, error)
        return error

    def _refused(self, found: Fault, error: Exception) -> RefusedError:
        command = f"--schema {self.schema}"
        repair = (
            f"sluicegate pg install {command}, in the database of this connection"
            if found.state in NOT_INSTALLED
            else f"sluicegate pg install {command} --append ROLE, as the owner of the schema"
        )
        return caused(RefusedError(f"nothing appended: {found.message}", repair=repair), error)


class Fault(NamedTuple):
    """The information in a driver's error."""

    state: str
    message: str
    detail: str
    constraint: str

    @classmethod
    def behind(cls, error: BaseException) -> Fault | None:
        """Read the innermost cause of `error` that has a SQLSTATE; `None` without one.

        The error around it may have its SQLSTATE but not its detail, as in SQLAlchemy 2.0 on
        asyncpg.
        """
        faults = [fault for each in causes(error) if (fault := cls.of(each)) is not None]
        return faults[-1] if faults else None

    @classmethod
    def of(cls, error: BaseException) -> Fault | None:
        """Read an error of asyncpg, psycopg or psycopg2; `None` for one without a SQLSTATE."""
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if not isinstance(state, str):
            return None
        told = getattr(error, "diag", None)  # of psycopg
        names = ("message", "detail", "constraint_name")
        if told is not None:
            names = ("message_primary", "message_detail", "constraint_name")
        message, detail, constraint = (
            found if isinstance(found := getattr(told or error, name, None), str) else ""
            for name in names
        )
        return cls(state, message or text_of(error), detail, constraint)


def append_call(
    schema: str, stream: str, messages: Sequence[NewMessage], expected: int | None
) -> AppendCall:
    """Return the call that appends these messages."""
    return AppendCall(schema, stream, f"[{','.join(map(_json, messages))}]", expected)


def _json(message: NewMessage) -> str:
    given = "" if message.id is None else f'"id":"{message.id}",'
    return (
        f'{{{given}"type":{message.type_text},"data":{message.data_text},'
        f'"metadata":{message.metadata_text}}}'
    )
