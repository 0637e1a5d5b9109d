"""`PostgresAccess` against a server: the environment, rotating passwords, options in the wrong place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.postgres.sink.postgres_help import database

from sluicegate import ConfigError, RefusedError, Retry, RowBatch, UnavailableError, send, stack
from sluicegate.postgres import PostgresAccess, PostgresSink, QueueAdmin, check_streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("by_service", [False, True])
async def test_the_environment_is_used_if_it_is_asked_for(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by_service: bool,
) -> None:
    parts = urlsplit(embedded_postgres.dsn)
    host, port, name = parts.hostname or "", str(parts.port), parts.path.lstrip("/")
    login = {"user": parts.username or "", "password": parts.password or ""}
    if by_service:
        given = {"host": host, "port": port, "dbname": name, **login}
        file = tmp_path / ".pg_service.conf"
        file.write_text("\n".join(["[here]", *(f"{key}={value}" for key, value in given.items())]))
        monkeypatch.setenv("PGSERVICE", "here")
    else:
        found = {"host": host, "port": port, "database": name, **login}
        for key, value in found.items():
            monkeypatch.setenv(f"PG{key.upper()}", value)
    async with database(embedded_postgres.dsn) as db:
        access = PostgresAccess.from_environment()
        assert login["password"] not in repr(access)
        assert ("service here" if by_service else f"{host}/{name}") in repr(access)
        async with PostgresSink(access, table=db.table, columns=("id", "word")) as sink:
            assert await send(sink, RowBatch([(1, "x")])) == {}
        assert await db.rows() == [(1, "x")]
        assert [each.name for each in await check_streams(access, schema="nothing_here")] == [
            "schema-missing"
        ]


def test_an_empty_environment_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="none of the environment variables PGSERVICE, PGHOST"):
        PostgresAccess.from_environment()


async def test_a_service_that_does_not_exist_is_named(
    real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSERVICE", "nowhere")
    for access in (PostgresAccess.from_environment(), "postgresql://?service=nowhere"):
        with pytest.raises(ConfigError, match="service='nowhere': there is no such service in"):
            async with QueueAdmin(access):
                pass


@pytest.mark.parametrize("is_async", [False, True])
async def test_each_new_connection_asks_for_the_password(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, is_async: bool
) -> None:
    """After a change of the password a new connection logs in with the new one. The end of the
    session may be read before that of its connection, which fails a write that has sent nothing.
    """
    async with database(embedded_postgres.dsn) as db:
        role = f"{db.table}_rotating"
        asked: list[str] = []

        def password() -> str:
            asked.append(f"secret {len(asked)}@/")
            return asked[-1]

        async def async_password() -> str:
            return password()

        await db.con.execute(
            f"CREATE ROLE {role} LOGIN PASSWORD 'secret 0@/'; GRANT ALL ON {db.table} TO {role}"
        )
        try:
            host = embedded_postgres.dsn.partition("@")[2]
            access = PostgresAccess(
                f"postgresql://{role}@{host}", password=async_password if is_async else password
            )
            sink: Any = stack(
                PostgresSink(access, table=db.table, columns=("id", "word"), pool_size=1), Retry()
            )
            async with sink:
                assert await send(sink, RowBatch([(1, "x")])) == {}
                before = len(asked)
                await db.con.execute(f"ALTER ROLE {role} PASSWORD 'secret {before}@/'")
                await db.con.fetch(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1",
                    role,
                )
                assert await send(sink, RowBatch([(2, "x")])) == {}
            assert len(asked) == before + 1
            assert len(await db.rows()) == 2
        finally:
            await db.con.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _raise(error: Exception) -> Callable[[], Any]:
    def password() -> Any:
        raise error

    return password


@pytest.mark.parametrize(
    ("password", "kind", "told"),
    [
        (_raise(KeyError("hush")), RefusedError, r"password\(\) failed with KeyError"),
        (_raise(ConnectionRefusedError(111, "vault")), UnavailableError, "vault"),
        (_raise(UnavailableError("no vault")), UnavailableError, "no vault"),
        (lambda: 5, RefusedError, r"password\(\) returned int"),
    ],
)
async def test_a_password_that_cannot_be_had_is_the_fault_of_no_item(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    password: Any,
    kind: type[Exception],
    told: str,
) -> None:
    access = PostgresAccess(embedded_postgres.dsn, password=password)
    with pytest.raises(kind, match=told) as caught:
        async with PostgresSink(access, table="t", columns=("id",)):
            pass
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"password": ""}, "^password='': must be text that is not empty.*environment variable"),
        ({"password": 5}, r"^password='\.\.\.': must be text"),
        ({"password": "a", "connect_options": {"password": "b"}}, "is also in connect_options"),
        ({"connect_options": [("ssl", True)]}, "^connect_options="),
        ({"connect_options": {"max_size": 3}}, "is given by pool_size="),
        ({"connect_options": {"loop": None}}, "^connect_options="),
        ({"dsn": "postgresql://h/d?max_size=5"}, "'max_size' is no option of a connection"),
        ({"dsn": "postgresql://h/d?connect_timeout=5"}, "connect_options= of PostgresAccess"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"dsn": "postgresql://h/d", **arguments}
    with pytest.raises(ConfigError, match=told):
        PostgresAccess(**given)


@pytest.mark.parametrize("where", ["dsn", "connect_options"])
async def test_a_setting_that_the_server_does_not_know_is_named(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, where: str
) -> None:
    access: Any = (
        f"{embedded_postgres.dsn}?pool_colour=blue"
        if where == "dsn"
        else PostgresAccess(
            embedded_postgres.dsn, connect_options={"server_settings": {"pool_colour": "blue"}}
        )
    )
    with pytest.raises(ConfigError, match='"pool_colour"') as caught:
        async with PostgresSink(access, table="t", columns=("id",)):
            pass
    assert "in the DSN after ?, or in connect_options" in str(caught.value)
    assert "triggers" not in str(caught.value)
    with pytest.raises(ConfigError, match='"pool_colour"'):
        await check_streams(access)
