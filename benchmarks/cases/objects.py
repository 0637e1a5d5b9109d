"""Objects and Parquet files written by the sinks, and by hand with the same clients: the same bytes
in the same parts, into a folder and an S3 server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sluicegate import ArrowBatch, RowBatch, send

from ..destination import installed
from ..harness import US_PER_ITEM, Case, CaseUnavailableError, Target, name_of, placed
from ..stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from sluicegate import Batch

    from ..harness import Contender
    from ..stopwatch import TimedTurn, Took

    Write = Callable[[Any], Awaitable[None]]

OBJECTS, BY_HAND = "ObjectSink", "obstore by hand"
PARQUET, PYARROW = "ParquetSink", "pyarrow and obstore by hand"
ROWS, COLUMNS = "rows", "columns of Arrow"
FOLDER, S3 = "a folder", "an S3 server"
SIZE = 20_000
ITEMS, QUICK = 200_000, 40_000


def _items() -> list[dict[str, Any]]:
    return [
        {"event_id": n, "user_id": n % 977, "action": f"action {n % 31}", "took": n / 7}
        for n in range(SIZE)
    ]


SCHEMA = {"event_id": "int64", "user_id": "int64", "action": "string", "took": "float64"}


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in SCHEMA.items()])


def _turn(
    opened: Callable[[], contextlib.AbstractAsyncContextManager[Write]],
    given: Any,
    batches: int,
    count: Callable[[], int],
) -> TimedTurn:
    async def turn() -> Took:
        async with opened() as write:
            await write(given)
            watch = Stopwatch()
            for _ in range(batches):
                await write(given)
            return watch.read()

    def run() -> Took:
        before = count()
        took = asyncio.run(turn())
        assert count() - before == batches + 1, "an object is missing"
        return took

    return run


def _by_sink(sink: Any, batch_of: Callable[[Any], Batch[Any]]) -> Any:
    @contextlib.asynccontextmanager
    async def opened() -> Any:
        async def write(given: Any) -> None:
            if errors := await send(sink, batch_of(given)):
                raise AssertionError(f"an item was refused: {errors}")

        async with sink:
            yield write

    return opened


def _by_hand(store: Any, encode: Callable[[Any], Any], *, folder: Path | None) -> Any:
    """Encode in a thread, store under a new name, and sync in the case of a folder."""
    import obstore

    from sluicegate.objects.store import PART_BYTES, PARTS_AT_ONCE, sync

    @contextlib.asynccontextmanager
    async def opened() -> Any:
        async def write(given: Any) -> None:
            content = await asyncio.to_thread(encode, given)
            name = f"hand-{uuid4().hex}"
            await obstore.put_async(
                store, name, content, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
            if folder is not None:
                await asyncio.to_thread(sync, folder / name, folder)

        yield write

    return opened


def _lines(items: Sequence[dict[str, Any]]) -> bytes:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return "".join(f"{encode(item)}\n" for item in items).encode()


def _parquet_of_rows(items: Sequence[dict[str, Any]]) -> Any:
    import pyarrow as pa

    return _parquet(pa.Table.from_pylist(list(items), schema=_schema()))


def _parquet(table: Any) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    into = pa.BufferOutputStream()
    parquet.write_table(table, into, compression="zstd")
    return memoryview(into.getvalue()).cast("B")


@contextlib.contextmanager
def prepare_objects(count: int) -> Iterator[Sequence[Contender]]:
    if not installed("obstore", "moto"):
        raise CaseUnavailableError("obstore or moto is not installed")
    from obstore.store import from_url
    from tests.object_servers import object_server

    from sluicegate.objects import ObjectSink

    with tempfile.TemporaryDirectory() as made, object_server("s3") as server:
        folder = Path(made)
        client = server.client()
        server.bucket("events")
        url = server.place("events")

        def in_folder() -> int:
            return sum(1 for _ in folder.iterdir())

        def in_bucket() -> int:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket="events")
            return sum(page["KeyCount"] for page in pages)

        config: Any = server.config()
        places: dict[str, tuple[str, Any, Any, Callable[[], int]]] = {
            FOLDER: (folder.as_uri(), None, from_url(folder.as_uri()), in_folder),
            S3: (
                url,
                config,
                from_url(url, config=config, client_options={"allow_http": True}),
                in_bucket,
            ),
        }
        items, batches = _items(), max(1, count // SIZE)
        found: list[Contender] = []
        for at, (place, given, store, counted) in places.items():
            sink = ObjectSink(place, config=given)
            ways = {
                OBJECTS: _by_sink(sink, RowBatch),
                BY_HAND: _by_hand(store, _lines, folder=folder if at == FOLDER else None),
            }
            found += [
                placed(
                    line,
                    at,
                    _turn(way, items, batches, counted),
                    ours=line == OBJECTS,
                    items=batches * SIZE,
                )
                for line, way in ways.items()
            ]
        yield found


@contextlib.contextmanager
def prepare_parquet(count: int) -> Iterator[Sequence[Contender]]:
    if not installed("obstore", "pyarrow"):
        raise CaseUnavailableError("obstore or pyarrow is not installed")
    import pyarrow as pa
    from obstore.store import from_url

    from sluicegate.objects import ParquetSink

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        store = from_url(folder.as_uri())
        items, batches = _items(), max(1, count // SIZE)
        table = pa.Table.from_pylist(items, schema=_schema())
        (columns,) = table.to_batches()
        given: dict[str, tuple[Any, Any, Any, Any]] = {
            ROWS: (items, RowBatch, _parquet_of_rows, _schema()),
            COLUMNS: (columns, ArrowBatch, lambda batch: _parquet(pa.table(batch)), None),
        }
        found: list[Contender] = []
        for at, (batch, kind, encode, schema) in given.items():
            sink = ParquetSink(folder.as_uri(), schema=schema)
            ways = {
                PARQUET: _by_sink(sink, kind),
                PYARROW: _by_hand(store, encode, folder=folder),
            }
            found += [
                placed(
                    line,
                    at,
                    _turn(way, batch, batches, lambda: sum(1 for _ in folder.iterdir())),
                    ours=line == PARQUET,
                    items=batches * SIZE,
                )
                for line, way in ways.items()
            ]
        yield found


CASES = (
    Case(
        name="objects",
        title="Lines of JSON into an object store",
        prepare=prepare_objects,
        items=ITEMS,
        quick_items=QUICK,
        along="place",
        unit=US_PER_ITEM,
        peers=(BY_HAND,),
        is_drawn=False,
        targets=tuple(
            Target(name_of(OBJECTS, at), name_of(BY_HAND, at), 0.95) for at in (FOLDER, S3)
        ),
    ),
    Case(
        name="parquet",
        title="Parquet files",
        prepare=prepare_parquet,
        items=ITEMS,
        quick_items=QUICK,
        along="items",
        unit=US_PER_ITEM,
        peers=(PYARROW,),
        is_drawn=False,
        targets=tuple(
            Target(name_of(PARQUET, at), name_of(PYARROW, at), 0.9) for at in (ROWS, COLUMNS)
        ),
    ),
)
