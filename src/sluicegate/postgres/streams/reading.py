"""Reading a log page by page. Pure: a reading returns the next statement and takes its rows.

1. A stream is read by version. Its versions become visible in order, so none can appear later
   before a version that was read.
2. Everything else is read by position, up to the horizon: beyond it an open transaction may still
   add messages. The horizon is read in a separate statement, before the messages.
3. A page begins after the last message of the previous page, by position or version, so a reading
   holds one page, and concurrent deletions and additions do not affect it. A page ends after
   `PAGE_BYTES`, unless it has only one message.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ..._core import checks
from ..._core.checks import bad
from ..records.values import aware, microseconds_of
from .drivers import Query
from .message import COLUMNS, STORED, is_cut, stored_message, stream_name, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .drivers import Value
    from .message import StoredMessage, UndecodableMessage
    from .selection import StreamSelection

    Rows = Sequence[Sequence[Any]]
    ReadFrom = Literal["beginning", "next"] | datetime | int

LAST = 2**63 - 1
POLL = 0.25
"""Default interval, in seconds, of polls by a live reading without new messages."""

PAGE_BYTES = 16 << 20
"""Maximum number of bytes of a page of several messages."""

_STREAM = (
    f"SELECT {STORED} FROM {{schema}}.message m WHERE m.stream = CAST({{0}} AS text) "  # noqa: S608
    "AND m.version >= CAST({1} AS bigint) ORDER BY m.version LIMIT CAST({2} AS bigint)"
)
_HORIZON = "SELECT {schema}.horizon()"
_SLEEP = "SELECT pg_sleep(CAST(CAST({0} AS bigint) / 1000.0 AS double precision))"
_BIGINT = "CAST({%d} AS bigint)"
_TIME = "(timestamptz 'epoch' + CAST({%d} AS bigint) * interval '1 microsecond')"
_ARRAY = "ARRAY(SELECT jsonb_array_elements_text(CAST(CAST({%d} AS text) AS jsonb)))"
_FIRST = (
    # OFFSET 0 prevents the planner from scanning the log by position until the time matches
    "SELECT min(f.position) FROM (SELECT m.position FROM {schema}.message m "  # noqa: S608
    f"WHERE m.at >= {_TIME % 0} OFFSET 0) f"
)
_AHEAD = f"SELECT m.position FROM {{schema}}.message m WHERE m.position > {_BIGINT % 0}"  # noqa: S608
_OLDER = f" AND m.at < {_TIME % 1}"


class _Step(Enum):
    HORIZON = auto()
    TIME = auto()
    """Find the first position at or after the start time."""
    AHEAD = auto()
    """Find the messages beyond the horizon that existed before the start."""
    PAGES = auto()


class PagedReading(Protocol):
    """A reading of the log."""

    @property
    def is_over(self) -> bool:
        """Whether the reading has ended for good."""
        ...

    def query(self) -> Query | None:
        """Return the next statement; `None` at the end, for a live reading also temporarily."""
        ...

    def take(self, rows: Rows) -> list[StoredMessage | UndecodableMessage]:
        """Process the statement's rows; return their messages, and errors to raise in their place."""
        ...


class StreamReading:
    """Reads a stream by version."""

    def __init__(
        self, schema: str, stream: str, start: int, *, limit: int | None, page: int
    ) -> None:
        self._schema = schema
        self._stream = stream_name(stream)
        self._next = checks.count("start", start, least=0)
        self._left = checked_limit(limit)
        self._page = checks.count("page", page)

    @property
    def is_over(self) -> bool:
        """See `PagedReading`."""
        return not self._left

    def query(self) -> Query | None:
        """See `PagedReading`."""
        if self.is_over:
            return None
        template = within(COLUMNS, _STREAM, str(PAGE_BYTES), "m.version")
        values = (self._stream, self._next, min(self._page, self._left))
        return Query(self._schema, template, values)

    def take(self, rows: Rows) -> list[StoredMessage | UndecodableMessage]:
        """See `PagedReading`."""
        found = [stored_message(row) for row in rows]
        is_last = len(found) < min(self._page, self._left) and not is_cut(rows)
        self._left = 0 if is_last else self._left - len(found)
        if found:
            self._next = found[-1].version + 1
        return found


class LogReading:
    """Reads the log by position, from a start point to the horizon; a live reading continues."""

    def __init__(
        self,
        schema: str,
        selection: StreamSelection,
        start: ReadFrom,
        *,
        limit: int | None,
        page: int,
        live: bool,
    ) -> None:
        self._live = live
        self._schema = schema
        self._selection = selection
        self._start = checked_start(start)
        self._left = checked_limit(limit)
        self._page = checks.count("page", page)
        self._step = _Step.HORIZON
        self._after: int | None = None
        """Every position up to this one has been read, or is before the start."""
        self._first_horizon = 0
        self._horizon = 0
        self._earlier: frozenset[int] = frozenset()
        """Positions beyond the first horizon of messages that existed before the start."""

    @property
    def is_over(self) -> bool:
        """See `PagedReading`."""
        return not self._left

    def query(self) -> Query | None:
        """See `PagedReading`."""
        if self.is_over:
            return None
        if self._step is _Step.HORIZON:
            return Query(self._schema, _HORIZON)
        if self._step is _Step.TIME:
            return Query(self._schema, _FIRST, (self._time,))
        if self._step is _Step.AHEAD:
            if self._time is None:
                return Query(self._schema, _AHEAD, (self._horizon,))
            return Query(self._schema, _AHEAD + _OLDER, (self._horizon, self._time))
        if self._reached >= self._horizon:
            if self._live:  # polls again
                self._step = _Step.HORIZON
            return None
        return self._messages()

    def take(self, rows: Rows) -> list[StoredMessage | UndecodableMessage]:
        """See `PagedReading`."""
        if self._step is _Step.PAGES:
            return self._take_page(rows)
        if self._step is _Step.HORIZON:
            self._horizon = rows[0][0]
            self._step = self._begin() if self._after is None else _Step.PAGES
        elif self._step is _Step.TIME:
            found = rows[0][0]
            self._after = self._horizon if found is None else min(self._horizon, found - 1)
            self._step = _Step.AHEAD if self._live else _Step.PAGES
        else:
            self._earlier = frozenset(row[0] for row in rows)
            self._step = _Step.PAGES
        return []

    @property
    def _time(self) -> int | None:
        return microseconds_of(self._start) if isinstance(self._start, datetime) else None

    @property
    def _reached(self) -> int:
        return 0 if self._after is None else self._after

    def _begin(self) -> _Step:
        """Record the first horizon; return the next step."""
        self._first_horizon = self._horizon
        if isinstance(self._start, datetime):
            return _Step.TIME
        if self._start == "next":
            self._after = self._horizon
            return _Step.AHEAD
        self._after = self._start - 1 if isinstance(self._start, int) else 0
        return _Step.PAGES

    def _messages(self) -> Query:
        values: list[Value] = [self._reached, self._horizon]
        conditions = [f"m.position > {_BIGINT % 0} AND m.position <= {_BIGINT % 1}"]
        parameters = self._selection.parameters
        places = [_ARRAY % place for place in range(len(values), len(values) + len(parameters))]
        conditions.append(self._selection.condition("m", places))
        values += [json.dumps(each) for each in parameters]
        if self._time is not None and self._reached < self._first_horizon:
            number = len(values)
            conditions.append(
                f"(m.at >= {_TIME % number} OR m.position > {_BIGINT % (number + 1)})"
            )
            values += [self._time, self._first_horizon]
        page = (
            f"SELECT {STORED} FROM {{schema}}.message m WHERE {' AND '.join(conditions)} "  # noqa: S608
            f"ORDER BY m.position LIMIT {_BIGINT % len(values)}"
        )
        template = within(COLUMNS, page, str(PAGE_BYTES), "m.position")
        return Query(self._schema, template, (*values, min(self._page, self._left)))

    def _take_page(self, rows: Rows) -> list[StoredMessage | UndecodableMessage]:
        found = [stored_message(row) for row in rows]
        is_last = len(found) < min(self._page, self._left) and not is_cut(rows)
        self._after = self._horizon if is_last else found[-1].position
        if self._earlier:
            found = [message for message in found if message.position not in self._earlier]
        self._left -= len(found)
        return found


def sleep_query(schema: str, seconds: float) -> Query:
    """Return a statement that takes this long."""
    return Query(schema, _SLEEP, (round(seconds * 1000),))


def checked_limit(limit: int | None) -> int:
    """Check the maximum number of messages. Raises `ConfigError`."""
    return LAST if limit is None else checks.count("limit", limit, least=0)


def checked_start(start: object) -> ReadFrom:
    """Check a start point. Raises `ConfigError`."""
    if isinstance(start, str) and start in {"beginning", "next"}:
        return cast("ReadFrom", start)
    if isinstance(start, datetime):
        return aware("start", start)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        rule = 'must be "beginning", "next", an aware datetime, or a position of at least 0'
        raise bad("start", start, rule)
    return start
