"""Jobs in plain SQL: enqueued, claimed and settled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

CLAIM = "SELECT * FROM {s}.claim_jobs($1, 'workers', $2, 10, 10, 10, 30)"
SETTLE = "SELECT r_fate FROM {s}.settle_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"


async def create(con: Any, log: Log, name: str, **options: Any) -> None:
    """Create a queue."""
    columns = ", ".join(("name", *options))
    values = ", ".join(f"${n}" for n in range(1, len(options) + 2))
    await con.execute(
        f"INSERT INTO {log.sql}.queue ({columns}) VALUES ({values})", name, *options.values()
    )


async def insert(con: Any, log: Log, queue: str, *jobs: tuple[str | None, Any]) -> None:
    """Insert jobs, each a key and a payload, with one statement."""
    await con.execute(
        f"INSERT INTO {log.sql}.job (queue, key, payload) "
        "SELECT $1, u.key, u.payload::jsonb FROM unnest($2::text[], $3::text[]) AS u (key, payload)",
        queue,
        [key for key, _ in jobs],
        [json.dumps(payload) for _, payload in jobs],
    )


async def claim(con: Any, log: Log, queue: str, consumer: str = "one") -> list[Any]:
    """Claim jobs; return their rows."""
    return list(await con.fetch(CLAIM.format(s=log.sql), queue, consumer))


async def settle(
    con: Any, log: Log, queue: str, leases: list[Any], action: str, done: list[Any]
) -> list[str]:
    """Settle the leases of these rows, and the jobs of the rows that are done; return the
    results.
    """
    nothing = [None] * len(leases)
    rows = await con.fetch(
        SETTLE.format(s=log.sql),
        queue,
        [row["r_lease"] for row in leases],
        [row["r_lane"] for row in leases],
        [action if row["r_lane"] is not None else "done" for row in leases],
        [row["r_place"] for row in leases],
        *(nothing, nothing, nothing, nothing),
        [row["r_place"] for row in done if row["r_lane"] is not None],
        [row["r_lease"] for row in done if row["r_lane"] is not None],
    )
    return [row["r_fate"] for row in rows]


async def handled(con: Any, log: Log, queue: str) -> list[Any]:
    """Claim and settle until no job is left; return the payloads in order."""
    payloads: list[Any] = []
    while rows := await claim(con, log, queue):
        payloads += [json.loads(row["r_payload"]) for row in rows]
        leases = {row["r_lease"]: row for row in rows}
        fates = await settle(con, log, queue, [*leases.values()], "free", rows)
        assert set(fates) <= {"freed", "empty"}
    return payloads
