"""Invalid arguments, and servers that do not meet the source's requirements: the error names the
repair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_help import role

from sluicegate import ConfigError, Consumer
from sluicegate.consumer import Poison
from sluicegate.postgres import PostgresQueueSource, QueueAdmin, install_streams
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

pytestmark = pytest.mark.usefixtures("real_clock")

DSN = "postgresql://u:secret@localhost/db"


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of any type."""
    return options


async def handle(_: Message) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"queue": ""}, "queue='': must be text that is not empty"),
        ({"queue": 7}, "queue=7: must be text"),
        ({"lease": 0}, "lease=0: must be more than 0 seconds"),
        ({"lease": 0.01}, "lease=0.01: must be at least 0.1 s"),
        ({"per_key": 0}, "per_key=0: must be a whole number of at least 1"),
        ({"poll": -1}, "poll=-1: must be more than 0 seconds"),
        ({"back_after": -1}, "back_after=-1: must be at least 0 seconds"),
        ({"group": ""}, "group='': must be text"),
        ({"consumer": ""}, "consumer='': must be text"),
        ({"schema": "no such"}, "schema='no such': must consist of letters"),
    ],
)
def test_a_bad_argument_is_named_with_its_rule(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PostgresQueueSource(DSN, **given({"queue": "jobs", **options}))
    assert rule in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"poison": "skip"},
        {"poison": "block"},
        {"poison": Poison("exit", dead_letters=MemorySink())},
        {"on_nak": "redeliver"},
    ],
)
def test_what_the_queue_decides_is_no_option_of_its_consumer(options: Any) -> None:
    source = PostgresQueueSource(DSN, queue="jobs")
    with pytest.raises(
        ConfigError, match="is decided by this source, which keeps unhandled records itself"
    ):
        Consumer(source, **options)


def test_a_source_shows_no_password() -> None:
    source = PostgresQueueSource(DSN, queue="jobs", consumer="one")
    assert repr(source) == (
        "PostgresQueueSource(localhost/db, queue='jobs', schema='sluicegate', consumer='one')"
    )


async def refused(log: Log, dsn: str = "", **options: Any) -> str:
    """The error of opening a consumer."""
    settings = given({"queue": "jobs", "schema": log.schema, **options})
    source = PostgresQueueSource(dsn or log.dsn, **settings)
    with pytest.raises(ConfigError) as raised:
        await Consumer(source, name="test").run(handle)
    return str(raised.value)


async def test_a_queue_that_does_not_exist_is_named_with_the_command_that_makes_it(
    log: Log,
) -> None:
    assert "queue='jobs': does not exist; create it with `sluicegate queue create" in await refused(
        log
    )


async def test_a_missing_schema_is_named_with_its_command(log: Log) -> None:
    told = await refused(log, schema="nowhere")
    assert "run `sluicegate pg install DSN --schema nowhere`" in told


async def test_an_older_schema_is_named_with_its_command(log: Log) -> None:
    async with log.connected() as con:
        await con.execute(f"DELETE FROM {log.sql}.migration WHERE version > 1")
    assert f"run `sluicegate pg upgrade DSN --schema {log.schema}`" in await refused(log)


@pytest.mark.parametrize("right", ["enqueue", "read"])
async def test_a_role_with_another_right_is_told_of_the_one_to_work(log: Log, right: Any) -> None:
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("jobs")
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, **{right: app.name})  # type: ignore[arg-type]  # a right's name
        assert f"with --work {app.name}" in await refused(log, app.dsn)


async def test_a_role_without_rights_is_told_how_to_get_them(log: Log) -> None:
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("jobs")
    name = f"stranger_{log.schema}"
    async with log.connected() as con:
        await con.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    told = await refused(log, _as(log.dsn, name))
    assert f"may not be used by the role '{name}'" in told
    assert "--work" in told


def _as(dsn: str, role: str) -> str:
    return f"postgresql://{role}:pw@{dsn.rpartition('@')[2]}"
