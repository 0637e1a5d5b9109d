"""A migration with dual writes: balances move from an old database into the state of their
partition, each with the first event of its account. Until the old database is switched off, each
event is written to both.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate import Consumer, RetryPolicy, Terminate
from sluicegate.consumer import Commits, MemoryLog, MemorySource
from sluicegate.consumer.jobs import JobScheduler, MemoryState

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext, Incomplete


@dataclass(frozen=True)
class Account:
    balance: int
    last: int
    """The offset of the last event that it includes."""


NEW = Account(0, -1)


@dataclass
class Movement:
    """The value of a job, in which the processor stores its result for the finaliser."""

    amount: int
    is_migrated: bool
    seed: Account = NEW


UPSERT = """
    INSERT INTO accounts (name, balance, last) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET balance = excluded.balance, last = excluded.last
    WHERE last < excluded.last"""


class Migration:
    def __init__(self, path: Path) -> None:
        self.path = path
        retry = RetryPolicy(attempts=5)
        self.reads = JobScheduler(self.read_old, self.book, retry=retry, name="reads")
        self.writes = JobScheduler(self.write_old, self.written, retry=retry, name="writes")

    async def handle(self, context: EventContext) -> Incomplete:
        is_migrated = context.store.get(context.key) is not None
        movement = Movement(context.value, is_migrated)
        return self.reads.schedule(context, context.key, movement)

    def read_old(self, account: str, movement: Movement) -> None:
        """Stage 1, in a thread: in order per account, with no access to the state."""
        if movement.is_migrated:
            return
        with closing(sqlite3.connect(self.path)) as old:
            query = "SELECT balance, last FROM accounts WHERE name = ?"
            for row in old.execute(query, [account]):
                movement.seed = Account(*row)

    async def book(
        self, context: EventContext, account: str, movement: Movement, error: BaseException | None
    ) -> Incomplete | Terminate:
        """The finaliser of stage 1, in the partition's order."""
        if error is not None:
            return Terminate(error=error)  # poison, after its attempts
        now = context.store.get(account)
        if now is None:  # read again: an earlier event may have seeded it meanwhile
            now = movement.seed
            print(f"{account}: {now.balance} from the old database")
        if context.message.offset > now.last:  # otherwise the seed includes it
            now = Account(now.balance + movement.amount, context.message.offset)
            print(f"{account}: {movement.amount:+} = {now.balance}")
            context.store.put(account, now)
        return self.writes.schedule(context, account, now)

    def write_old(self, account: str, now: Account) -> None:
        """Stage 2, in a thread: also in order per account."""
        with closing(sqlite3.connect(self.path)) as old, old:
            old.execute(UPSERT, [account, now.balance, now.last])

    async def written(
        self, context: EventContext, account: str, now: Account, error: BaseException | None
    ) -> Terminate | None:
        """Complete the event, so that its position may be passed."""
        return None if error is None else Terminate(error=error)

    async def run(self, log: MemoryLog, state: MemoryState) -> None:
        source = MemorySource(log, ends=True)
        async with Consumer(source, ordering="partition", commits=Commits(every=0.1)) as consumer:
            report = await consumer.run_events(
                self.handle, jobs=[self.reads, self.writes], state=state
            )
        print(report)


def make_old_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INT, last INT)")
        old.executemany(
            "INSERT INTO accounts VALUES (?, ?, -1)", [("ann", 100), ("bob", 20), ("cid", 5)]
        )


def balances(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as old:
        return dict(old.execute("SELECT name, balance FROM accounts ORDER BY name"))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.db"
        make_old_database(path)
        log, state = MemoryLog(), MemoryState(keep=True)
        for amount in (50, -30, 7):
            log.produce("movements", amount, key="ann")
        await Migration(path).run(log, state)
        log.produce("movements", 1, key="ann")
        await Migration(path).run(log, MemoryState())  # another process: its state is empty
        print("old database:", balances(path))


if __name__ == "__main__":
    asyncio.run(main())
