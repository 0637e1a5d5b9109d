"""A load of Parquet files by dlt: `python load_by_dlt.py WAY FOLDER DSN STATE`, in an environment
that has dlt and not Sluicegate.

It prints a line when dlt is imported, and one when the load is done. `incremental` is dlt's way to
read a file once: a load that is complete is not repeated.
"""

from __future__ import annotations

import sys
from typing import Any

import dlt
from dlt.sources.filesystem import filesystem, read_parquet

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "arrow": ({"chunksize": 50_000, "use_pyarrow": True}, {"loader_file_format": "parquet"}),
}
"""The arguments of the reader and of the run. "arrow" is what its page on PostgreSQL recommends for
speed: Arrow tables, loaded by the ADBC driver.
"""


def main(way: str, folder: str, dsn: str, state: str) -> None:
    reading, running = WAYS[way]
    pipeline = dlt.pipeline(
        "flights",
        destination=dlt.destinations.postgres(dsn),
        dataset_name="by_dlt",
        pipelines_dir=state,
    )
    print("begin", flush=True)
    new = dlt.sources.incremental("modification_date")
    files = filesystem(bucket_url=folder, file_glob="*.parquet", incremental=new)
    rows = (files | read_parquet(**reading)).with_name("flights")
    pipeline.run(rows, write_disposition="append", **running)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
