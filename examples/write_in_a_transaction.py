"""Two batches in one transaction: rolled back the first time, and sent again."""

import asyncio

import asyncpg

import sluicegate
from sluicegate.postgres import PostgresSink
from sluicegate.testing import embedded_postgres


async def main(dsn: str) -> None:
    con = await asyncpg.connect(dsn)
    await con.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int CHECK (amount > 0))")
    batches = [sluicegate.RowBatch([(1, 30), (2, 12)]), sluicegate.RowBatch([(3, 7), (4, -1)])]
    sink = PostgresSink(dsn, table="orders", columns=("id", "amount"))

    async with sink:
        for attempt in (1, 2):
            try:
                async with sluicegate.transaction(sink) as tx:
                    for batch in batches:
                        errors = await sluicegate.send(tx, batch)
                        for index, error in errors.items():
                            reason = str(error).partition("\n")[0]
                            print(f"attempt {attempt}: {batch[index]} is refused: {reason}")
                    if attempt == 1:
                        raise TimeoutError("the warehouse does not answer")
            except TimeoutError as error:
                print(f"attempt {attempt}: {error}")
            rows = await con.fetchval("SELECT count(*) FROM orders")
            print(f"attempt {attempt}: {rows} rows")
    await con.close()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
