"""Consumers of a queue that are killed and frozen at random moments, whose connections become silent,
and whose server freezes.

Checked by separate queries on the effects of the handlers. `SLUICEGATE_KILLS=500 pytest -m soak
tests/postgres/queues/source/test_kills.py` does so 500 times.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.source.kills_help import Queue, queue, stop
from tests.postgres.streams.log_help import Log, fresh_name, install_log
from tests.postgres.streams.silent_proxy import SilentProxy, freeze, silent_proxy

from sluicegate.testing import embedded_postgres as start_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

KILLS = int(os.environ.get("SLUICEGATE_KILLS", "500"))
WORKERS = 3
JOBS = 60
"""Jobs before each kill."""
LONG = 1.0
"""Lease in seconds beside these faults: an answer of the server is awaited for half of it."""
FAULTS = ("kill", "freeze", "silence", "freeze the server")


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests may freeze."""
    with there_or_skip("postgres", start_postgres()) as server:
        yield server


async def kill_at_random(made: Queue, kills: int, chance: random.Random) -> None:
    """Kill one of the processes at random moments, or freeze it until others have its leases."""
    await disturb(made, (FAULTS[number % 2] for number in range(kills)), chance)


async def disturb(
    made: Queue,
    faults: Iterable[str],
    chance: random.Random,
    proxy: SilentProxy | None = None,
    server: EmbeddedPostgres | None = None,
) -> None:
    """Cause these faults at random moments, while jobs are enqueued and handled."""
    options: dict[str, Any] = {}
    if proxy is not None:
        options = {"dsn": proxy.dsn, "effects": made.log.dsn, "lease": LONG}
    members = [await made.member(**options) for _ in range(WORKERS)]
    for fault in faults:
        await made.produce(JOBS, chance)
        await made.handled(but=chance.randrange(JOBS))
        place = chance.randrange(WORKERS)
        if fault == "kill":
            members[place].process.kill()
            members[place] = await made.member(**options)
        elif fault == "freeze":
            members[place].freeze()
            await made.without_lease(members[place])
            members[place].thaw()
        elif fault == "silence":
            assert proxy is not None
            assert proxy.silence() > 0
        else:
            assert server is not None
            await freeze(server, chance.uniform(1, 3) * LONG)
    await made.handled()
    await stop(*members)
    await made.assert_exact()


@pytest.mark.long
async def test_kills_and_frozen_processes_lose_no_job_and_keep_the_order_of_keys(
    log: Log,
) -> None:
    """Q-T2, Q-T11, Q-T13, R6: half of the faults are a SIGSTOP."""
    async with queue(log) as made:
        await kill_at_random(made, 10, random.Random(0))


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_many_kills_and_frozen_processes(log: Log) -> None:
    """Q-T2, Q-T11, Q-T13, R6: `SLUICEGATE_KILLS` faults, half of them a SIGSTOP that outlasts the
    lease.
    """
    async with queue(log) as made:
        await kill_at_random(made, KILLS, random.Random(1))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(3))
async def test_silent_connections_and_frozen_servers_lose_no_job_and_keep_the_order_of_keys(
    own_postgres: EmbeddedPostgres, seed: int
) -> None:
    """Q-T2, Q-T11, Q-T13, R6: `SLUICEGATE_KILLS` faults of all kinds. The server is frozen for up
    to three leases.
    """
    chance = random.Random(seed)
    faults = [chance.choice(FAULTS) for _ in range(KILLS)]
    log = Log(own_postgres.dsn, fresh_name())
    await install_log(log)
    async with silent_proxy(log.dsn) as proxy, queue(log) as made:
        await disturb(made, faults, chance, proxy, own_postgres)
