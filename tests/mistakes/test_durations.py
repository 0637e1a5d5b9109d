"""Every duration of the public names warns of milliseconds, and of no usual value.

The durations are found by their annotation, or by a docstring that says seconds; a new one fails
here until it is checked, or listed below with the reason why it is not.

White box: the check that all durations share.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import warnings
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from tests.surface import PUBLIC, members, not_exported

from sluicegate import (
    Batcher,
    BlockingBatcher,
    ClosedError,
    ConfigError,
    Consumer,
    RetryPolicy,
    run,
)
from sluicegate._core import checks
from sluicegate.consumer import MemoryLog, MemorySource, TopicPartition
from sluicegate.errors import SluicegateWarning
from sluicegate.postgres import (
    PostgresAccess,
    PostgresSink,
    QueueAdmin,
    StreamReader,
    SyncStreamReader,
)
from sluicegate.postgres.queues.schedules import ScheduleAdmin
from sluicegate.sinks import MemorySink
from sluicegate.spark import register
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MILLISECONDS = 1_000_001
"""17 minutes; as seconds it is no whole number of hours, and longer than every usual period."""
DSN = "postgresql://db/shop"
URL = "https://example.com/ingest"


class Duration(NamedTuple):
    """A parameter of a public name."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}({self.name}=)"


def _source() -> MemorySource:
    return MemorySource(MemoryLog(partitions=[TopicPartition("orders", 0)]), ends=True)


def _pipe() -> tuple[Any, ...]:
    return _source(), Batcher(MemorySink[Any]())


NEEDED: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Batcher": lambda: ((print,), {}),
    "BlockingBatcher": lambda: ((print,), {}),
    "Consumer": lambda: ((_source(),), {}),
    "Interjector": lambda: ((_handle,), {"every": 60.0}),
    "ItemBatcher": lambda: ((_handle,), {"max_batch_size": 5}),
    "KafkaState": lambda: ((), {"topic": "state", "bootstrap": "kafka:9092"}),
    "PostgresState": lambda: ((DSN,), {"table": "state"}),
    "Pipe": lambda: (_pipe(), {}),
    "TransactionalPipe": lambda: (
        (_source(), PostgresSink(DSN, table="sums", columns=("id",))),
        {},
    ),
    "QueueAdmin": lambda: ((DSN,), {}),
    "QueueMonitor": lambda: ((DSN,), {}),
    "ClickHouseSink": lambda: ((URL,), {"table": "events", "columns": ("id",)}),
    "ElasticsearchSink": lambda: ((URL,), {"index": "events"}),
    "FileSink": lambda: (("events.jsonl",), {}),
    "HttpAccess": lambda: ((URL,), {}),
    "KafkaAccess": lambda: (("kafka:9092",), {}),
    "PostgresAccess": lambda: ((DSN,), {}),
    "HttpSink": lambda: ((URL,), {}),
    "KafkaSink": lambda: (("orders",), {"bootstrap": "kafka:9092"}),
    "NatsSink": lambda: (("orders.new",), {"servers": "nats:4222"}),
    "ObjectSink": lambda: (("s3://bucket/events",), {}),
    "ParquetSink": lambda: (("s3://bucket/events",), {"schema": {"id": "int64"}}),
    "PostgresEffects": lambda: ((DSN,), {}),
    "PostgresQueueSink": lambda: ((DSN,), {"queue": "mails"}),
    "PostgresSink": lambda: ((DSN,), {"table": "events", "columns": ("id",)}),
    "PostgresStreamSink": lambda: ((DSN,), {"stream": "stream", "type": "type"}),
    "RedisSink": lambda: (("redis://localhost",), {"stream": "events"}),
    "SqlSink": lambda: (("sqlite:///shop.db",), {"table": "events", "columns": ("id",)}),
    "UdpSink": lambda: (("metrics", 8125), {}),
    "FileSource": lambda: (("logs/*.jsonl",), {}),
    "JetStreamSource": lambda: (("ORDERS",), {"servers": "nats:4222", "durable": "bills"}),
    "KafkaSource": lambda: (("orders",), {"bootstrap": "kafka:9092", "group": "bills"}),
    "ConfluentKafkaSource": lambda: (("orders",), {"bootstrap": "kafka:9092", "group": "bills"}),
    "MemorySource": lambda: ((MemoryLog(),), {}),
    "PostgresQueueSource": lambda: ((DSN,), {"queue": "mails"}),
    "PostgresStreamSource": lambda: ((DSN,), {"subscription": "mails"}),
    "PostgresAdvisoryLocks": lambda: ((DSN,), {}),
    "PostgresSubscriptions": lambda: ((DSN,), {}),
    "PostgresParkStore": lambda: ((DSN,), {}),
    "SchemaRegistry": lambda: ((URL,), {}),
    "Spool": lambda: (("spool",), {}),
    "StreamMonitor": lambda: ((DSN,), {}),
    "SubscriptionAdmin": lambda: ((DSN,), {}),
}
"""The arguments that a constructor needs besides its durations."""


def _handle(*_: Any) -> None: ...


async def _batcher(call: Callable[[Batcher[int]], Any]) -> None:
    async with Batcher[int](MemorySink[int]()) as batcher:
        await call(batcher)


def _blocking(call: Callable[[BlockingBatcher[int]], Any]) -> None:
    with BlockingBatcher[int](MemorySink[int]()) as batcher:
        call(batcher)


async def _each(messages: Any) -> None: ...


async def _main() -> None: ...


def _register(patience: int) -> None:
    with contextlib.suppress(AttributeError):  # after the checks
        register(cast("Any", None), "rows", MemorySink[Any](), patience=patience)


def _admin(name: str) -> Callable[[int], Any]:
    return lambda n: QueueAdmin(DSN).create("mails", **cast("Any", {name: n}))


async def _put(every: int) -> None:
    queue = SimpleNamespace(name="q", settings=SimpleNamespace(slot_function="sha256"))
    with contextlib.suppress(AttributeError):  # after the checks
        await ScheduleAdmin(cast("Any", None), cast("Any", queue)).put("s", every=every)


def _environment(name: str) -> Callable[[int], Any]:
    def read(n: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGHOST", "db")
            return PostgresAccess.from_environment(**cast("Any", {name: n}))

    return read


CALLS: dict[str, Callable[[int], Any]] = {
    "PostgresAccess.from_environment(answer_timeout=)": _environment("answer_timeout"),
    "PostgresAccess.from_environment(close_timeout=)": _environment("close_timeout"),
    "PostgresAccess.from_environment(statement_timeout=)": _environment("statement_timeout"),
    "Batcher.add(timeout=)": lambda n: _batcher(lambda it: it.add(1, timeout=n)),
    "Batcher.add_many(timeout=)": lambda n: _batcher(lambda it: it.add_many([1], timeout=n)),
    "Batcher.add_from(timeout=)": lambda n: _batcher(lambda it: it.add_from([1], timeout=n)),
    "Batcher.submit(timeout=)": lambda n: _batcher(lambda it: it.submit(1, timeout=n)),
    "Batcher.deliver(timeout=)": lambda n: _batcher(lambda it: it.deliver(1, timeout=n)),
    "Batcher.flush(timeout=)": lambda n: _batcher(lambda it: it.flush(timeout=n)),
    "Batcher.shutdown(deadline=)": lambda n: _batcher(lambda it: it.shutdown(deadline=n)),
    "BlockingBatcher.add(timeout=)": lambda n: _blocking(lambda it: it.add(1, timeout=n)),
    "BlockingBatcher.add_many(timeout=)": lambda n: _blocking(
        lambda it: it.add_many([1], timeout=n)
    ),
    "BlockingBatcher.submit(timeout=)": lambda n: _blocking(lambda it: it.submit(1, timeout=n)),
    "BlockingBatcher.deliver(timeout=)": lambda n: _blocking(lambda it: it.deliver(1, timeout=n)),
    "BlockingBatcher.flush(timeout=)": lambda n: _blocking(lambda it: it.flush(timeout=n)),
    "BlockingBatcher.shutdown(deadline=)": lambda n: _blocking(lambda it: it.shutdown(deadline=n)),
    "BlockingReceipt.settled(timeout=)": lambda n: _blocking(
        lambda it: it.submit(1).settled(timeout=n)
    ),
    "BlockingReceipt.result(timeout=)": lambda n: _blocking(
        lambda it: it.submit(1).result(timeout=n)
    ),
    "Consumer.run_batch(max_wait=)": lambda n: Consumer(_source()).run_batch(_each, max_wait=n),
    "RetryPolicy(max_seconds=)": lambda n: Consumer(_source(), retry=RetryPolicy(max_seconds=n)),
    "RetryPolicy(give_up_after=)": lambda n: Consumer(
        _source(), retry=RetryPolicy(give_up_after=n)
    ),
    "RetryPolicy(max_retry_after=)": lambda n: Consumer(
        _source(), retry=RetryPolicy(max_retry_after=n)
    ),
    "run(patience=)": lambda n: run(_main(), patience=n),
    "ScheduleAdmin.put(every=)": _put,
    "QueueAdmin.create(keep_done=)": _admin("keep_done"),
    "QueueAdmin.create(keep_dead=)": _admin("keep_dead"),
    "StreamReader.follow(timeout=)": lambda n: StreamReader(cast("Any", None)).follow(timeout=n),
    "StreamReader.follow(poll=)": lambda n: StreamReader(cast("Any", None)).follow(poll=n),
    "SyncStreamReader.follow(timeout=)": lambda n: SyncStreamReader(cast("Any", None)).follow(
        timeout=n
    ),
    "SyncStreamReader.follow(poll=)": lambda n: SyncStreamReader(cast("Any", None)).follow(poll=n),
    "MemorySource.script_commit(seconds=)": lambda n: _source().script_commit(seconds=n),
    "register(patience=)": lambda n: _register(n),
}
"""How a duration is given that is no argument of a constructor in `NEEDED`."""
NOT_CHECKED = {
    "FakeClock.advance(seconds=)": "virtual time",
    "FakeClock.wait_for(timeout=)": "virtual time",
    "FakeClock.sleep(seconds=)": "virtual time",
    "SlowSink(seconds=)": "virtual time",
    "ignore_cancel(seconds=)": "virtual time",
    "slow(seconds=)": "virtual time",
    "FakeClock(start=)": "a time, not a duration",
    "RateLimit(burst=)": "a number of items",
    "Spool(max_age=)": "weeks are usual",
    "QueueAdmin.create(key_rate=)": "a number of jobs",
    "Clock.sleep(seconds=)": "a protocol",
    "LoopClock.sleep(seconds=)": "on the path of every wait",
    "write_dataframe(patience=)": "checked as that of `register`, for a data frame",
    "Write(patience=)": "checked as that of `register`, with its pipeline",
    "JobAdmin.apply_retention(keep_ids=)": "only a timedelta",
    "JobAdmin.apply_retention(keep_clients=)": "only a timedelta",
    "JobAdmin.list(older_than=)": "only a timedelta",
    "JobAdmin.purge(older_than=)": "only a timedelta",
    "QueueSettings(keep_done=)": "only a timedelta",
    "QueueSettings(keep_dead=)": "only a timedelta",
    "TakesBack.put_back(delay=)": "a protocol",
    "PostgresQueueSource.put_back(delay=)": "called by the consumer",
}
"""The durations without the warning, and why."""
MADE_BY_US = {
    "AddTimeout", "CircuitOpenError", "DeliverTimeout", "DestinationStats", "DrainReport", "HandlerEnd",
    "HttpResponse", "HttpStatusError", "Lag", "LaneStats", "LedgerFull", "Observer.on_flushed",
    "Observer.on_retry", "OldestRecord", "OpenTelemetryObserver.on_flushed",
    "OpenTelemetryObserver.on_retry", "PipelineReport", "PrometheusObserver.on_flushed",
    "PrometheusObserver.on_retry", "QueueStats", "ShutdownReport", "SlotStats", "Stats",
    "Schedule", "ThrottledError", "Unfinished", "UnitReport", "Unread",
    "Backlog",
}  # fmt: skip
"""Reports, errors and calls of observers, whose durations are for the program to read."""
_NAMED = re.compile(r"seconds|timeout|deadline|lease|patience|retry_after|delay$")
_ARGUMENT = r"^ *{name}: (.*?)(?=^ *\w+: |\Z)"


def _durations() -> Iterator[Duration]:
    for name, thing in _described():
        yield from _of(name, thing)
        if isinstance(thing, type):
            for member in {re.split(r"\W", line)[0] for line in members(thing)}:
                static = inspect.getattr_static(thing, member)
                if inspect.isfunction(static) or isinstance(static, (classmethod, staticmethod)):
                    yield from _of(f"{name}.{member}", getattr(thing, member))


def _described() -> Iterator[tuple[str, Any]]:
    """What programs import or call, including the types of what they receive."""
    for path in PUBLIC:
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if getattr(thing, "__module__", path) == path and callable(thing):
                yield name, thing
    for path, name in not_exported():
        thing = getattr(importlib.import_module(path), name)
        if callable(thing):
            yield name, thing


def _of(owner: str, called: Any) -> Iterator[Duration]:
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return
    text = inspect.getdoc(called) or ""
    for name, parameter in parameters.items():
        annotation = str(parameter.annotation)
        told = re.search(_ARGUMENT.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
        says = _NAMED.search(name) or (told and "second" in told[1])
        if "timedelta" in annotation or ("float" in annotation and says):
            yield Duration(owner, name)


DURATIONS = sorted({*_durations()})
CHECKED = [
    each for each in DURATIONS if str(each) not in NOT_CHECKED and each.owner not in MADE_BY_US
]


def _give(duration: Duration, value: int) -> object:
    if (call := CALLS.get(str(duration))) is not None:
        return call(value)
    args, options = NEEDED.get(duration.owner, lambda: ((), {}))()
    kind = next(
        found
        for path in PUBLIC
        if duration.owner in importlib.import_module(path).__all__
        and (found := getattr(importlib.import_module(path), duration.owner)).__module__ == path
    )
    return kind(*args, **{**options, duration.name: value})


async def _awaited(made: Any) -> None:
    await made


def _told(duration: Duration, value: int) -> list[str]:
    """The warnings about the duration, or the error that refuses its value."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused: list[str] = []
        made: object = None
        try:
            made = _give(duration, value)
        except ConfigError as error:
            refused = [str(error)]
    if inspect.iscoroutine(made):
        with FakeClock() as clock, warnings.catch_warnings(record=True) as later:
            warnings.simplefilter("always")
            with contextlib.suppress(ClosedError):
                clock.run(_awaited(made))
        caught = [*caught, *later]
    told = [str(each.message) for each in caught if each.category is SluicegateWarning]
    assert {each.filename for each in caught if each.category is SluicegateWarning} <= {__file__}
    return [text for text in (*told, *refused) if f"{duration.name}={value}" in text]


def test_milliseconds_are_noticed() -> None:
    """At the line of the program, for whichever duration, also by a `ConfigError` of its limit."""
    assert [str(each) for each in CHECKED if not _told(each, MILLISECONDS)] == []


def test_the_exceptions_are_durations() -> None:
    """So that a name that no longer exists is removed from these tables."""
    known = {str(each) for each in DURATIONS}
    assert {*NOT_CHECKED, *CALLS} <= known
    assert {each.owner for each in DURATIONS} >= MADE_BY_US


@pytest.mark.parametrize(
    ("usual", "quiet", "warned"),
    [
        (checks.LONG_DELAY, (1, 99, 3600, 100.5, timedelta(seconds=250)), (100, 250, 5000)),
        (checks.LONG_TIMEOUT, (30, 999, 3600, 7200, 1800.0), (1000, 5000, 30_000)),
        (checks.LONG_PERIOD, (900, 1800, 5400, 86_400, 604_800), (10_000, 30_000, 60_000)),
        (checks.ANY_LENGTH, (10**9,), ()),
    ],
)
def test_a_whole_number_is_warned_of_by_the_kind_of_its_duration(
    usual: float, quiet: tuple[Any, ...], warned: tuple[int, ...]
) -> None:
    """Whole hours are usual for every kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in quiet:
            checks.seconds("lease", value, usual=usual)
    for value in warned:
        with pytest.warns(SluicegateWarning, match=f"write lease={value / 1000:g}, otherwise"):
            checks.seconds("lease", value, usual=usual)
