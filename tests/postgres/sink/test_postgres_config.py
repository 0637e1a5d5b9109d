"""`PostgresSink` and its classifier without a server.

White box: the classifier, the text of errors, and the making of rows.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
from typing import Any

import asyncpg
import cloudpickle  # type: ignore[import-untyped,unused-ignore]  # published without types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.postgres.access_help import access_from

from sluicegate import (
    ClosedError,
    ConfigError,
    ErrorClass,
    PermanentError,
    RowBatch,
    UnknownOutcomeError,
)
from sluicegate._core.logs import for_log
from sluicegate._core.values.rows import RowMaker
from sluicegate.errors import NotPicklableError
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.postgres.client.errors import classify_postgres, copy_row, for_item
from sluicegate.postgres.client.names import quoted

DSN = "postgresql://someone:hush%20hush@db.example:5433/sales"
P, T, U, H, R = (
    ErrorClass.PERMANENT,
    ErrorClass.TRANSIENT,
    ErrorClass.UNAVAILABLE,
    ErrorClass.THROTTLE,
    ErrorClass.REFUSED,
)


def to_events(dsn: str | PostgresAccess | None = None, **options: Any) -> PostgresSink:
    usual: dict[str, Any] = {"table": "events", "columns": ("user_id", "action", "ts")}
    return PostgresSink(access_from(dsn, options), **{**usual, **options})


def server_error(state: str, **fields: str) -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new(
        {"S": "ERROR", "C": state, "M": "as the server says it", **fields}
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("23505", P),
        ("23503", P),
        ("23502", P),
        ("23514", P),
        ("22001", P),
        ("22003", P),
        ("22P02", P),
        ("42P01", R),
        ("42501", P),
        ("28P01", R),
        ("XX000", P),
        ("ZZ999", P),
        ("40001", T),
        ("40P01", ErrorClass.DEADLOCK),
        ("55P03", T),
        ("57014", T),
        ("08003", T),
        ("53100", R),
        ("58030", T),
        ("53300", H),
        ("57P01", U),
        ("57P02", U),
        ("57P03", U),
        ("08001", U),
        ("08004", U),
        ("08006", U),
        ("25006", R),
        ("28000", R),
        ("3D000", R),
        ("3F000", R),
        ("42703", R),
        ("2200H", R),
        ("54000", P),
        ("26000", T),
        ("40003", ErrorClass.UNKNOWN),
        ("08007", ErrorClass.UNKNOWN),
    ],
)
def test_a_servers_error_is_classed_by_its_sqlstate(state: str, expected: ErrorClass) -> None:
    """B-T17, batcher/B25; also if it is the cause of another error."""
    error = server_error(state)
    assert classify_postgres(error) is expected
    wrapped = RuntimeError("around it")
    wrapped.__cause__ = error
    assert classify_postgres(wrapped) is expected
    assert to_events(DSN).classify(wrapped) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(111, "refused"), U),
        (socket.gaierror(-2, "no such name"), U),
        (OSError(113, "no route to host"), U),
        (ConnectionResetError(104, "reset"), T),
        (BrokenPipeError(), T),
        (EOFError(), T),
        (TimeoutError(), T),
        (asyncio.IncompleteReadError(b"", 4), T),
        (asyncpg.InterfaceError("connection is closed"), T),
        (asyncpg.InterfaceError("pool is closing"), T),
        (asyncpg.TooManyConnectionsError("too many"), H),
        (asyncpg.exceptions.InvalidCachedStatementError("altered"), T),
        (asyncpg.DataError("invalid input for query argument $1"), P),
        (UnknownOutcomeError("ours"), ErrorClass.UNKNOWN),
        (PermanentError("ours"), P),
        (ValueError("nobody knows it"), None),
        (asyncpg.InterfaceError("another operation is in progress"), None),
    ],
)
def test_other_errors_are_classed_by_what_broke(
    error: BaseException, expected: ErrorClass | None
) -> None:
    """B-T17, batcher/B25: by the broken part."""
    assert classify_postgres(error) is expected


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        ("42501", {"R": "aclcheck_error"}, R),
        ("42501", {"R": "check_enable_rls"}, R),
        ("42501", {"R": "ExecWithCheckOptions"}, P),
        ("42501", {"S": "FATAL"}, R),
        ("08P01", {"S": "FATAL"}, T),
        ("08P01", {"S": "ERROR"}, P),
        ("08001", {"V": "FATAL"}, U),
    ],
)
def test_a_code_of_two_meanings_is_judged_by_what_else_the_server_says(
    state: str, fields: dict[str, str], expected: ErrorClass
) -> None:
    """A pooler uses 08P01 for any reason not to serve; row-level security has the code of a missing
    permission.
    """
    assert classify_postgres(server_error(state, **fields)) is expected


def test_a_log_does_not_show_what_a_trigger_says() -> None:
    raised = server_error("UE001", M="not Ann", R="exec_stmt_raise")
    assert for_log(raised) == "UnknownPostgresError: SQLSTATE UE001"
    assert "not Ann" in str(for_item(raised))
    assert "not Ann" not in for_log(for_item(raised))


def test_our_own_error_is_not_judged_by_its_cause() -> None:
    error = UnknownOutcomeError("lost")
    error.__cause__ = asyncpg.ConnectionDoesNotExistError("closed")
    assert classify_postgres(error) is ErrorClass.UNKNOWN


def test_a_circle_of_causes_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert classify_postgres(one) is None


@pytest.mark.parametrize(
    ("context", "row"),
    [
        ("COPY events, line 2", 1),
        ('COPY events, line 3, column word: "COPY events, line 9"', 2),
        ("COPY events, Zeile 4, Spalte wort", 3),
        ("PL/pgSQL function f() line 7 at RAISE\nCOPY events, line 1", 0),
        ("COPY other, line 2", None),
        ("COPY events, line 11", None),
        ("COPY events, line 0", None),
        ("SQL statement", None),
        (None, None),
    ],
)
def test_the_row_is_read_from_the_servers_context(context: str | None, row: int | None) -> None:
    error = server_error("22P02", **({} if context is None else {"W": context}))
    assert copy_row(error, "events", 10) == row


@given(st.text(st.characters(exclude_characters="\0")))
def test_a_quoted_name_cannot_end_early(name: str) -> None:
    inside = quoted(name)[1:-1]
    assert quoted(name)[0] == quoted(name)[-1] == '"'
    assert inside.replace('""', "").count('"') == 0
    assert inside.replace('""', '"') == name


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"table": ""}, "table"),
        ({"table": "a\0b"}, "table"),
        ({"schema": ""}, "schema"),
        ({"columns": "user_id"}, "columns"),
        ({"columns": ()}, "columns"),
        ({"columns": ("a", "a")}, "columns"),
        ({"columns": ("a", 3)}, "columns"),
        ({"columns": 7}, "columns"),
        ({"on_conflict": "merge"}, "on_conflict"),
        ({"conflict_columns": ("user_id",)}, "conflict_columns"),
        ({"on_conflict": "ignore", "conflict_columns": ("other",)}, "conflict_columns"),
        ({"on_conflict": "ignore", "update_columns": ("ts",)}, "update_columns"),
        ({"on_conflict": "ignore", "version_column": "ts"}, "version_column"),
        ({"on_conflict": "update", "version_column": "other"}, "version_column"),
        ({"on_conflict": "update", "update_columns": ("other",)}, "update_columns"),
        (
            {"on_conflict": "update", "conflict_columns": ("ts",), "update_columns": ("ts",)},
            "update_columns",
        ),
        ({"row": "id"}, "row"),
        ({"copy_threshold": 0}, "copy_threshold"),
        ({"copy_threshold": True}, "copy_threshold"),
        ({"staging_threshold": 0}, "staging_threshold"),
        ({"pool_size": 0}, "pool_size"),
        ({"close_timeout": 0}, "close_timeout"),
        ({"statement_timeout": -1}, "statement_timeout"),
        ({"pool": object()}, "pool"),
        ({"pool": lambda: None, "dsn": DSN}, "dsn"),
        ({"dsn": "mysql://someone:hush@there"}, "dsn"),
        ({"dsn": "postgresql://someone:hush@there:port/x"}, "dsn"),
        ({"dsn": 5}, "dsn"),
        ({"dsn": None}, "dsn"),
        ({"password": "x", "pool": lambda: None}, "password"),
    ],
)
def test_a_bad_argument_is_named_at_construction(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=") as caught:
        to_events(**({} if "pool" in arguments else {"dsn": DSN}) | arguments)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("sink", "shown"),
    [
        (to_events(DSN), "db.example:5433/sales"),
        (to_events("postgresql://u:hush@/x?host=/run/pg"), "/run/pg/x"),
        (
            to_events(
                PostgresAccess(
                    "postgresql://",
                    connect_options={"host": "h", "database": "d", "password": "hush"},
                )
            ),
            "h/d",
        ),
        (to_events("postgresql://"), "default host/default database"),
        (to_events(pool=dict), "a pool"),
    ],
)
def test_a_sink_shows_host_and_database_only(sink: PostgresSink, shown: str) -> None:
    assert repr(sink) == f"PostgresSink({shown}, table='events', on_conflict='error')"
    assert "hush" not in repr(vars(sink))


async def make_pool() -> asyncpg.Pool[asyncpg.Record]:
    return await asyncpg.create_pool(DSN)


def _cloudpickled(thing: object) -> bytes:
    dumps: Any = vars(cloudpickle)["dumps"]
    data: bytes = dumps(thing)
    return data


def test_a_description_survives_pickling() -> None:
    """B-T45: closed, with every argument."""
    access = PostgresAccess(DSN, connect_options={"ssl": make_pool})
    sink = PostgresSink(access, table="t", columns=("a", "b"), on_conflict="ignore")
    again = pickle.loads(pickle.dumps(sink))
    assert repr(again) == repr(sink)
    assert not again.is_open
    by_value = pickle.loads(
        _cloudpickled(to_events(pool=lambda: make_pool(), row=lambda item: (item,)))
    )
    assert isinstance(by_value, PostgresSink)


def test_a_context_that_cannot_travel_is_named() -> None:
    options = {"ssl": ssl.create_default_context()}
    sink = to_events(PostgresAccess(DSN, connect_options=options))
    with pytest.raises(NotPicklableError, match="connect_options"):
        pickle.dumps(sink)


def test_capabilities_say_what_is_true() -> None:
    assert to_events(DSN).capabilities.max_concurrency == 10
    assert to_events(DSN, pool_size=3).capabilities.max_concurrency == 3
    assert not to_events(DSN).capabilities.idempotent
    assert to_events(DSN, on_conflict="update").capabilities.idempotent
    assert to_events(DSN).capabilities.key_prefix_safe


async def test_writing_while_closed_is_refused(real_clock: object) -> None:
    with pytest.raises(ClosedError, match="is not open"):
        await to_events(DSN).write(RowBatch([(1, 2, 3)]))


class Thing:
    def __init__(self, a: int) -> None:
        self.a = a


def named(**values: Any) -> dict[str, Any]:
    return values


numbers: st.SearchStrategy[Any] = st.integers()
good_items: st.SearchStrategy[Any] = st.one_of(
    st.tuples(numbers, st.text()),
    st.lists(numbers, min_size=2, max_size=2),
    st.builds(named, a=numbers, b=st.text(), c=st.none()),
)
bad_items: st.SearchStrategy[Any] = st.one_of(
    st.tuples(numbers),
    st.lists(numbers, min_size=3, max_size=4),
    st.builds(named, a=numbers),
    st.text(),
    st.binary(),
    st.none(),
    st.builds(Thing, st.integers()),
)


@st.composite
def marked_items(draw: st.DrawFn) -> list[tuple[bool, Any]]:
    return [
        (is_good, draw(good_items if is_good else bad_items))
        for is_good in draw(st.lists(st.booleans()))
    ]


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first text builds tables
@given(marked_items())
def test_an_item_that_is_no_row_fails_alone(items: list[tuple[bool, Any]]) -> None:
    indices, rows, errors = RowMaker(("a", "b"), None).rows(RowBatch(item for _, item in items))
    assert list(indices) == [index for index, (is_good, _) in enumerate(items) if is_good]
    assert sorted(errors) == [index for index, (is_good, _) in enumerate(items) if not is_good]
    assert all(isinstance(error, PermanentError) for error in errors.values())
    wanted = [
        [item["a"], item["b"]] if hasattr(item, "keys") else list(item)
        for is_good, item in items
        if is_good
    ]
    assert [list(row) for row in rows] == wanted


def test_rows_of_the_right_length_are_taken_as_they_are() -> None:
    batch = RowBatch([(1, 2), [3, 4]])
    assert RowMaker(("a", "b"), None).rows(batch)[1] is batch.items


def test_a_function_makes_the_row_and_its_error_is_the_cause() -> None:
    indices, rows, errors = RowMaker(("a",), lambda item: (10 // item,)).rows(RowBatch([5, 0]))
    assert (list(indices), list(rows)) == ([0], [(2,)])
    assert isinstance(errors[1].__cause__, ZeroDivisionError)


def test_attributes_make_a_row() -> None:
    assert RowMaker(("a",), None).rows(RowBatch([Thing(1)]))[1] == [(1,)]
    assert list(RowMaker(("a.b",), None).rows(RowBatch([Thing(1)]))[2]) == [0]
