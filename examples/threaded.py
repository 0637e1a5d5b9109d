"""Four threads add readings one at a time; SQLite receives them in batches."""

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import sluicegate

Reading = tuple[int, int]


def write(path: str, batch: sluicegate.Batch[Reading]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO readings VALUES (?, ?)", batch)


def measure(batcher: sluicegate.BlockingBatcher[Reading], sensor: int) -> None:
    for value in range(1_000):
        batcher.add((sensor, value), timeout=5.0)


def main(path: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE readings (sensor INTEGER, value INTEGER)")
    with sluicegate.BlockingBatcher(partial(write, path), name="readings") as batcher:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(partial(measure, batcher), range(4)))
        print("the last one:", batcher.deliver((4, 0)).value)
    print(batcher.report)


if __name__ == "__main__":
    main(sys.argv[1])
