"""Records that cannot be transformed, rows that the batcher refuses, and records that an operator
releases.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, piped, records

from sluicegate import (
    Batcher,
    ConfigError,
    Limits,
    PermanentError,
    RetryPolicy,
    UnavailableError,
    flow,
)
from sluicegate.batcher import Tenants
from sluicegate.consumer import InFlight, MemoryLog, MemorySource, Poison
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


async def test_a_transform_whose_service_is_down_holds_everything_until_it_is_back(
    fake_clock: FakeClock,
) -> None:
    """The position does not pass the record, no attempt is counted, and nothing becomes poison."""
    log, sink, tries = MemoryLog(records("abc")), Destination(), 0

    def look_up(message: Any) -> Any:
        nonlocal tries
        if message.offset == 1:
            tries += 1
            if fake_clock.now() < 60.0:
                raise UnavailableError("the registry is down")
        return message.record

    await piped(log, sink, fake_clock, transform=look_up, retry=RetryPolicy(attempts=2)).run()
    assert sink.offsets == [0, 1, 2]
    assert tries > 2
    assert fake_clock.now() >= 60.0


async def test_a_cancelled_error_of_a_transform_is_poison_of_its_record(
    fake_clock: FakeClock,
) -> None:
    def cancel(message: Any) -> Any:
        if message.offset == 0:
            raise asyncio.CancelledError
        return message.record

    log, sink = MemoryLog(records("ab")), Destination()
    report = await piped(log, sink, fake_clock, transform=cancel, poison="skip").run()
    assert sink.offsets == [1]
    assert report.source.counts.terminated == 1


@pytest.mark.parametrize("kind", ["none", "plain", "async"])
async def test_records_that_their_source_cannot_decode_have_no_rows(
    fake_clock: FakeClock, kind: str
) -> None:
    """O-T18: they are dead letters in the order of their keys, and no transform gets them."""
    bad, seen, letters = {0, 3, 4, 9}, list[int](), MemorySink[Any]()
    log, sink = MemoryLog(records("abababababab", undecodable=bad)), Destination()

    def plain(message: Any) -> Any:
        seen.append(message.offset)
        return message.record

    async def later(message: Any) -> Any:
        return plain(message)

    transform = {"none": None, "plain": plain, "async": later}[kind]
    options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
    await piped(log, sink, fake_clock, transform=transform, **options).run()
    intact = [at for at in range(12) if at not in bad]
    assert sorted(sink.offsets) == intact
    assert sorted(seen) == ([] if kind == "none" else intact)
    assert sorted(letter.item["offset"] for letter in letters.items) == sorted(bad)
    assert {letter.error_type for letter in letters.items} == {"UndecodableError"}
    assert log.positions[P0].offset == 12


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_exit_in_a_transform_ends_the_pipe_after_its_drain(
    fake_clock: FakeClock, is_async: bool
) -> None:
    log, sink = MemoryLog(records("ab")), Destination()

    def leave(message: Any) -> Any:
        if message.offset == 1:
            raise SystemExit(3)
        return message.record

    async def leave_later(message: Any) -> Any:
        return leave(message)

    pipe = piped(log, sink, fake_clock, transform=leave_later if is_async else leave)
    with pytest.raises(SystemExit):
        await pipe.run()
    assert log.start(P0).offset <= 1


async def test_what_the_batcher_refuses_is_poison_of_its_record_alone(
    fake_clock: FakeClock,
) -> None:
    """An unusable key, an item that is too large, a key function that raises."""
    log, sink = MemoryLog(records("abcdef")), Destination()
    letters: MemorySink[Any] = MemorySink()
    rows = [b"fine", b"x" * 100, None, [[1]], b"raises", b"good"]

    def key(row: Any) -> Any:
        if row == b"raises":
            raise KeyError("user")
        return row

    batcher = Batcher(
        sink,
        key=key,
        size_of=len,
        oversize="reject",
        limits=Limits(max_items=4, max_delay=0.1, max_bytes=50),
        clock=fake_clock,
    )
    report = await piped(
        log,
        sink,
        fake_clock,
        batcher=batcher,
        transform=lambda message: rows[message.offset],
        poison=Poison("skip", dead_letters=letters),
    ).run()
    assert sorted(sink.applied) == [b"fine", b"good"]
    kinds = {letter.batch_id: letter.error_type for letter in letters.items}
    assert kinds == {"t/0@1": "ItemTooLarge", "t/0@3": "TypeError", "t/0@4": "KeyError"}
    assert log.positions[P0].offset == 6
    assert report.source.counts.dead_lettered == 3


async def test_a_blocked_record_goes_on_when_an_operator_says_so(fake_clock: FakeClock) -> None:
    log, sink, is_repaired = MemoryLog(records("abc")), Destination(), False

    def decode(message: Any) -> Any:
        if message.offset == 1 and not is_repaired:
            raise ValueError("no schema")
        return message.record

    pipe = piped(log, sink, fake_clock, ends=False, transform=decode, poison="block")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(60.0)
        assert sink.offsets == [0, 2]
        assert log.start(P0).offset == 1
        assert [each.key for each in pipe.blocked] == ["b"]
        is_repaired = True
        assert pipe.unblock("b") == 1
        await fake_clock.advance(2.0)
        assert sink.offsets == [0, 2, 1]
        assert log.start(P0).offset == 3
        pipe.stop()


async def test_tenants_share_a_pipe_by_weight(fake_clock: FakeClock) -> None:
    log, sink = MemoryLog(records(["big"] * 200 + ["small"] * 20)), Destination()
    batcher = Batcher(
        sink,
        tenant=lambda record: record.key,
        tenants=Tenants(weights={"small": 4}),
        limits=Limits(max_items=10, max_delay=0.1, workers=1),
        clock=fake_clock,
    )
    report = await flow.pipe(MemorySource(log, ends=True, clock=fake_clock), batcher).run()
    last_small = max(i for i, row in enumerate(sink.applied) if row.key == "small")
    assert last_small < 100
    assert report.source.counts.acked == 220


async def test_bytes_inside_are_bounded_by_the_records(fake_clock: FakeClock) -> None:
    """No more records are fetched while rows of this many bytes are unwritten."""
    log, sink = MemoryLog(records("abcdefghij")), Destination()
    most: list[int] = []

    async def look(batch: Any) -> None:
        most.append(pipe.stats().source.in_flight.bytes)
        await fake_clock.sleep(1.0)

    sink.before = look
    pipe = piped(log, sink, fake_clock, in_flight=InFlight(bytes=4), limits=Limits(max_delay=0.0))
    await pipe.run()
    assert max(most) == 4
    assert len(sink.applied) == 10


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"overflow": "drop_oldest"}, "overflow"),
        ({"overflow": "reject"}, "overflow"),
        ({"last_resort": MemorySink()}, "last_resort"),
        ({"key": str, "on_key_failure": "pause"}, "on_key_failure"),
        ({"tenant": str, "tenants": Tenants(max_pending_items=1000)}, "tenants"),
    ],
)
def test_what_cannot_be_combined_is_refused_at_construction(
    options: dict[str, Any], name: str
) -> None:
    batcher = Batcher(MemorySink(), **options)
    with pytest.raises(ConfigError, match=name):
        flow.pipe(MemorySource(MemoryLog()), batcher)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"transform": 3}, "transform"),
        ({"transform": dict}, "transform"),
        ({"key": str}, "key"),
        ({"concurrency": 0}, "concurrency"),
        ({"poison": "park_key"}, "poison"),
        ({"poison": "drop"}, "poison"),
        ({"poison": "block_and_dead_letter"}, "dead_letters"),
        ({"in_flight": 0}, "in_flight"),
        ({"poisn": "skip"}, "has no such argument"),
    ],
)
def test_bad_arguments_are_refused_at_construction(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        flow.pipe(MemorySource(MemoryLog()), Batcher(MemorySink()), **options)


def test_what_is_no_batcher_or_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="batcher"):
        flow.pipe(MemorySource(MemoryLog()), MemorySink())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="source"):
        flow.pipe(MemoryLog(), Batcher(MemorySink()))  # type: ignore[arg-type]


@pytest.mark.parametrize("why", ["refused", "transform"])
async def test_a_record_that_cannot_be_written_ends_the_pipe(
    fake_clock: FakeClock, why: str
) -> None:
    """S-T13: `poison="exit"` raises its error, and the next pipe begins with it."""

    async def refuse_the_second(batch: Batch[Any]) -> None:
        if why == "refused" and 1 in [row.offset for row in batch]:
            raise PermanentError("no such column")

    def transform(message: Any) -> Any:
        if why == "transform" and message.offset == 1:
            raise PermanentError("no such column")
        return message.record

    log, sink = MemoryLog(records("aaa")), Destination()
    sink.before = refuse_the_second
    limits = Limits(max_items=1, max_delay=0.1)
    pipe = piped(
        log, sink, fake_clock, transform=transform, poison="exit", limits=limits, ends=False
    )
    with pytest.raises(PermanentError, match="no such column"):
        await pipe.run()
    assert 0 in sink.offsets
    assert log.start(P0).offset == 1


async def test_a_batcher_in_a_pipe_has_its_name_and_loses_nothing_that_the_pipe_keeps(
    fake_clock: FakeClock,
) -> None:
    """The row is rejected, and its record's letter is stored: no alert of lost items may fire."""
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry

    from sluicegate.telemetry import PrometheusConsumerObserver, PrometheusObserver

    async def write(batch: Batch[Any]) -> None:
        if any(row.offset == 1 for row in batch):
            raise PermanentError("no")

    registry, letters = CollectorRegistry(), MemorySink[Any]()

    def value(metric: str, name: str, **labels: str) -> float | None:
        return registry.get_sample_value(metric, {"name": name, **labels})

    named: list[tuple[dict[str, Any], str]] = [({}, "ledger"), ({"name": "rows"}, "rows")]
    for given, expected in named:
        batcher = Batcher(
            write,
            key=lambda row: row.key,
            limits=Limits(max_items=1),
            clock=fake_clock,
            observers=[PrometheusObserver(registry)],
            **given,
        )
        source = MemorySource(MemoryLog(records("abc")), ends=True, clock=fake_clock)
        options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters)}
        seen = [PrometheusConsumerObserver(registry)]
        pipe = flow.pipe(source, batcher, name="ledger", observers=seen, **options)
        report = await pipe.run()
        assert report.complete
        assert report.batcher.name == batcher.name == expected
        assert value("batcher_items_total", expected, outcome="rejected") == 1
        assert value("batcher_lost_total", expected) == report.batcher.tally.lost == 0
        line = "3 accepted: 2 delivered, 1 rejected; 1 returned to the source"
        assert f"'{expected}' complete" in str(report.batcher)
        assert line in str(report.batcher)
    assert value("source_term_total", "ledger", fate="terminated") == 0
    assert value("source_term_total", "ledger", fate="dead_lettered") == 2
    assert value("consumer_letters_total", "ledger") == 2


async def test_two_pipes_of_one_name_in_one_registry_warn(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry

    from sluicegate.telemetry import PrometheusConsumerObserver, PrometheusObserver

    registry = CollectorRegistry()
    for names in (("a", "b"), ("c", "c")):
        pipes = [
            flow.pipe(
                MemorySource(MemoryLog(records("abc")), ends=True, clock=fake_clock),
                Batcher(Destination(), clock=fake_clock, observers=[PrometheusObserver(registry)]),
                name=name,
                observers=[PrometheusConsumerObserver(registry)],
            )
            for name in names
        ]
        await asyncio.gather(*(pipe.run() for pipe in pipes))
    told = [line for line in caplog.messages if "open twice" in line]
    assert sorted(line.partition(":")[0] for line in told) == [
        "batcher 'c' is open twice",
        "consumer 'c' is open twice",
    ]
