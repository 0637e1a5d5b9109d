"""A destination that refuses every write, and items that are refused alone.

White box: errors are judged by the class that a retry would see.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    ConfigError,
    DeadLetter,
    ErrorClass,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    RowBatch,
    UnavailableError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.classify import classified
from sluicegate.sinks import DeadLetterRecord, Router

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import FakeClock

FORBIDDEN = "403 from https://example.test/bulk"


def forbidden() -> Exception:
    return RefusedError(FORBIDDEN, repair="give the token the right to write")


def bad_gateway() -> Exception:
    return UnavailableError("502 from https://example.test/bulk", perhaps_of_item=True)


class Server:
    """Applies batches, or refuses whole writes as the test specifies; every write takes
    `seconds`.
    """

    def __init__(
        self,
        refuses: Callable[[float, list[int]], bool],
        seconds: float = 0.01,
        error: Callable[[], Exception] = forbidden,
    ) -> None:
        self._refuses = refuses
        self._error = error
        self._seconds = seconds
        self.calls: list[tuple[float, list[int]]] = []
        self.applied: list[int] = []
        self.running = 0
        self.most_refused_at_once = 0

    async def __call__(self, batch: Batch[int]) -> None:
        now = asyncio.get_running_loop().time()
        items = list(batch)
        self.calls.append((now, items))
        refused = self._refuses(now, items)
        self.running += refused
        self.most_refused_at_once = max(self.most_refused_at_once, self.running)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.running -= refused
        if refused:
            raise self._error()
        self.applied += items


def letters() -> tuple[list[int], DeadLetter]:
    taken: list[int] = []

    async def take(batch: Batch[DeadLetterRecord[int]]) -> None:
        for record in batch:
            assert record.error_class == "permanent"
            assert "refused whenever it was sent alone" in record.message
            taken.append(record.item)

    return taken, DeadLetter(take)


@pytest.mark.parametrize(
    ("workers", "key", "outage"),
    [
        (1, None, 1.0),
        *((workers, key, 300.0) for workers in (1, 4) for key in (None, lambda item: item % 7)),
    ],
)
async def test_a_refusal_of_everything_is_an_outage(
    fake_clock: FakeClock, workers: int, outage: float, key: Any
) -> None:
    """B-T42, decisions 0.3: a permission revoked for a second, or five minutes, costs no item, no
    attempt, and one probe at a time. One worker keeps the order, unless the outage ends between the
    attempts of the item refused alone and of the items behind it; with this seed it does not.
    """
    server = Server(lambda now, items: 5.0 <= now < 5.0 + outage)
    taken, dead_letter = letters()
    limits = Limits(max_items=100, workers=workers, max_delay=0.05)
    retry = Retry(attempts=2, backoff=Backoff(rng=random.Random(1)))
    async with Batcher(stack(server, retry, dead_letter), limits=limits, key=key) as batcher:
        await batcher.add_many(range(1_000))
        assert (await batcher.flush()).complete
        await fake_clock.sleep(5.001 - fake_clock.now())
        await batcher.add_many(range(1_000, 4_000))
        assert (await batcher.flush()).complete
        assert fake_clock.now() < 5.0 + outage + 15.0
    assert taken == []
    assert sorted(server.applied) == list(range(4_000))
    late = [items for now, items in server.calls if 5.5 < now < 5.0 + outage]
    assert len(late) <= 2 * (outage / 2.0 + 10)
    assert server.most_refused_at_once <= workers
    if workers == 1 and key is None:
        assert server.applied == list(range(4_000))


async def test_an_outage_that_ends_within_a_search_moves_the_item_refused_alone_behind_one_part(
    fake_clock: FakeClock,
) -> None:
    """decisions 0.3: the item is written after the part that proved the recovery, and before all
    others; no item is lost or repeated.
    """
    proof: list[int] = []

    def refuses(now: float, items: list[int]) -> bool:
        is_behind_refusal = len(server.calls) > 1 and server.calls[-2][1] == [0] != items
        if not proof and now > 30.0 and is_behind_refusal:
            proof.extend(items)
        return not proof

    server = Server(refuses)
    taken, dead_letter = letters()
    retry = Retry(backoff=Backoff(rng=random.Random(1)))
    limits = Limits(max_items=100, workers=1, max_delay=0.05)
    async with Batcher(stack(server, retry, dead_letter), limits=limits) as batcher:
        await batcher.add_many(range(300))
        assert (await batcher.flush()).complete
    assert 0 < len(proof) < 100
    assert server.applied == [*proof, *(item for item in range(300) if item not in proof)]
    assert taken == []


@pytest.mark.parametrize(
    ("workers", "key", "bad", "size"),
    [
        *((workers, key, 334, 1) for workers in (1, 4) for key in (None, lambda item: item % 200)),
        *(
            (workers, key, 334, 200)
            for workers in (1, 4)
            for key in (None, lambda item: item % 200)
        ),
        (1, None, 0, 1),
        (4, None, 799, 1),
        (4, None, 0, 200),
        (1, None, 799, 200),
    ],
)
async def test_the_one_item_that_is_refused_alone_is_given_up_and_no_other(
    fake_clock: FakeClock, workers: int, key: Any, bad: int, size: int
) -> None:
    """decisions 0.3: one 403 for a specific body among 800 good items, wherever it is."""
    server = Server(lambda now, items: bad in items)
    taken, dead_letter = letters()
    limits = Limits(max_items=size, workers=workers, max_delay=0.05)
    async with Batcher(stack(server, Retry(), dead_letter), limits=limits, key=key) as batcher:
        receipts = [await batcher.submit(item) for item in range(800)]
        await batcher.flush(timeout=100.0)
        if size == 1 and bad == 799:
            # nothing proves that the destination accepts items: it waits for the next ones
            assert batcher.stats().destination.state == "refused"
        for item in range(800, 810):
            receipts.append(await batcher.submit(item))
            await fake_clock.sleep(10.0)
        assert (await batcher.flush(timeout=100.0)).complete
        outcomes = [receipt.outcome for receipt in receipts]
        assert fake_clock.now() < 300.0
    assert taken == [bad]
    assert [item for item, outcome in enumerate(outcomes) if outcome is not Outcome.DELIVERED] == [
        bad
    ]
    assert sorted(server.applied) == [item for item in range(810) if item != bad]
    assert len([items for _, items in server.calls if bad in items]) < 80


@pytest.mark.parametrize(
    ("workers", "key", "restart"),
    [
        (1, None, 0.0),
        (1, lambda item: item % 50, 3.0),
        (4, None, 20.0),
        (4, lambda item: item % 50, 0.0),
        (4, None, 3.0),
    ],
)
async def test_an_item_that_crashes_the_server_behind_a_proxy_is_given_up_and_no_other(
    fake_clock: FakeClock, workers: int, key: Any, restart: float
) -> None:
    """decisions 0.3: the proxy answers 502 for all items while the server restarts."""
    down_until = 0.0

    def crashes(now: float, items: list[int]) -> bool:
        nonlocal down_until
        if now < down_until:
            return True
        if 123 in items:
            down_until = now + restart
            return True
        return False

    server = Server(crashes, error=bad_gateway)
    taken, dead_letter = letters()
    limits = Limits(max_items=50, workers=workers, max_delay=0.05)
    async with Batcher(stack(server, Retry(), dead_letter), limits=limits, key=key) as batcher:
        await batcher.add_many(range(300))
        for item in range(300, 400):
            await batcher.add(item)
            await fake_clock.sleep(10.0)
        report = await batcher.flush(timeout=600.0)
        assert report.complete
    assert taken == [123]
    assert sorted(server.applied) == [item for item in range(400) if item != 123]


async def test_a_bad_gateway_is_an_outage(fake_clock: FakeClock) -> None:
    """B-T42: no item is given up, in a batcher or outside of one."""
    server = Server(lambda now, items: now < 60.0, error=bad_gateway)
    taken, dead_letter = letters()
    sink = stack(server, Retry(attempts=2), dead_letter)
    async with Batcher(sink, limits=Limits(max_items=10)) as batcher:
        await batcher.add_many(range(100))
        assert await send(stack(server, Retry(attempts=2)), RowBatch([100])) == {}
        assert (await batcher.flush()).complete
    assert taken == []
    assert sorted(server.applied) == list(range(101))


async def test_an_item_at_fault_that_was_the_last_one_leaves_no_outage_behind(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other items of its batch were accepted. With nothing left to send, no log line or metric
    may keep reporting a refusal.
    """
    server = Server(lambda now, items: 99 in items)
    taken, dead_letter = letters()
    async with Batcher(
        stack(server, Retry(), dead_letter), limits=Limits(max_items=100)
    ) as batcher:
        await batcher.add_many(range(100))
        assert (await batcher.flush(timeout=300.0)).complete
        assert taken == [99]
        assert batcher.stats().destination.state == "available"
        caplog.clear()
        await fake_clock.advance(300.0)
        assert caplog.messages == []


async def test_an_outage_in_the_middle_of_a_search_gives_up_no_good_item(
    fake_clock: FakeClock,
) -> None:
    """Two bad items, and refusals of everything that begin and end during the search for them."""
    for offset in range(14):
        begins = fake_clock.now() + 0.01 + offset * 0.15
        server = Server(
            lambda now, items, begins=begins: (  # type: ignore[misc]
                not {17, 444}.isdisjoint(items) or begins <= now < begins + 0.7
            )
        )
        taken, dead_letter = letters()
        async with Batcher(
            stack(server, Retry(), dead_letter),
            limits=Limits(max_items=100, workers=3, max_delay=0.05),
        ) as batcher:
            await batcher.add_many(range(600))
            assert (await batcher.flush(timeout=300.0)).complete
        assert sorted(taken) == [17, 444], offset
        assert sorted(server.applied) == [item for item in range(600) if item not in {17, 444}]


@pytest.mark.parametrize("seed", range(4))
async def test_one_of_two_servers_that_refuses_costs_no_item(
    fake_clock: FakeClock, seed: int
) -> None:
    """About every second request reaches a server with a broken configuration."""
    rng = random.Random(seed)
    server = Server(lambda now, items: rng.random() < 0.5)
    taken, dead_letter = letters()
    limits = Limits(max_items=50, workers=1 + seed % 4, max_delay=0.05)
    async with Batcher(
        stack(server, Retry(backoff=Backoff(rng=random.Random(seed))), dead_letter), limits=limits
    ) as batcher:
        await batcher.add_many(range(2_000))
        assert (await batcher.flush(timeout=600.0)).complete
    assert taken == []
    assert sorted(server.applied) == list(range(2_000))


@pytest.mark.parametrize("stops", [False, True])
async def test_a_server_that_goes_away_in_the_middle_of_a_search_is_probed_at_its_pace(
    fake_clock: FakeClock, stops: bool
) -> None:
    """A connection can be refused immediately: probes still have a pause between them."""
    calls: list[float] = []
    applied: list[int] = []
    gone = False

    async def write(batch: Batch[int]) -> None:
        nonlocal gone
        calls.append(fake_clock.now())
        assert len(calls) < 100
        if gone and fake_clock.now() < 60.0:
            raise UnavailableError("gone")
        if fake_clock.now() < 60.0:
            gone = len(batch) == 1 and fake_clock.now() > 12.0
            raise RefusedError("read-only", repair="promote it")
        applied.extend(batch)

    async with Batcher(stack(write, Retry()), limits=Limits(max_items=10)) as batcher:
        await batcher.add_many(range(10))
        await fake_clock.advance(19.0)
        if stops:
            assert (await batcher.shutdown(deadline=60.0)).complete
        else:
            assert (await batcher.flush()).complete
    assert applied == list(range(10))


async def test_refused_items_wait_for_the_repair_and_no_other_item_waits_with_them(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink with results per item (a blocked index) has named the refused ones: nothing is
    searched or delayed.
    """
    caplog.set_level("INFO", "sluicegate")
    applied: dict[int, float] = {}

    async def blocked(batch: Batch[int]) -> WriteResult:
        is_blocked = fake_clock.now() < 100.0
        refused = {
            i: RefusedError("index blocked", of_item=True)
            for i, item in enumerate(batch)
            if item % 4 == 3 and is_blocked
        }
        applied.update({item: fake_clock.now() for i, item in enumerate(batch) if i not in refused})
        return WriteResult.failed(batch, refused)

    taken, dead_letter = letters()
    async with Batcher(
        stack(blocked, Retry(), dead_letter), limits=Limits(max_items=10, workers=2, max_delay=0.1)
    ) as batcher:
        await batcher.add_many(range(200))
        await fake_clock.advance(50.0)
        assert batcher.stats().destination.state == "refused"
        assert batcher.stats().tally.delivered == 150
        assert (await batcher.flush()).complete
        assert batcher.stats().destination.state == "available"
    assert taken == []
    assert sorted(applied) == list(range(200))
    assert max(when for item, when in applied.items() if item % 4 != 3) < 1.0
    assert max(applied.values()) < 106.0
    lines = [
        record.levelname for record in caplog.records if "the destination" in record.getMessage()
    ]
    assert lines == ["ERROR", "ERROR", "INFO"]


async def test_refused_items_are_given_up_after_the_time_that_was_asked_for(
    fake_clock: FakeClock,
) -> None:
    async def blocked(batch: Batch[int]) -> WriteResult:
        return WriteResult.failed(
            batch,
            {i: RefusedError("blocked", of_item=True) for i, item in enumerate(batch) if item % 2},
        )

    async with Batcher(
        stack(blocked, Retry(give_up_after=30.0)), limits=Limits(max_items=4)
    ) as batcher:
        receipts = [await batcher.submit(item) for item in range(4)]
        assert (await batcher.flush()).complete
        assert 30.0 <= fake_clock.now() < 31.0
    assert [receipt.outcome for receipt in receipts] == [Outcome.DELIVERED, Outcome.REJECTED] * 2


async def test_around_a_router_no_item_is_blamed_for_its_route(fake_clock: FakeClock) -> None:
    """One table is missing; the other accepts everything, which is no evidence about the first
    one's rows.
    """
    good = Server(lambda now, items: False)
    missing = Server(lambda now, items: now < 100.0)
    taken, dead_letter = letters()
    router = Router(
        lambda item: "good" if item % 2 else "missing", {"good": good, "missing": missing}
    )
    async with Batcher(
        stack(router, Retry(), dead_letter), limits=Limits(max_items=10, workers=4)
    ) as batcher:
        await batcher.add_many(range(200))
        assert (await batcher.flush()).complete
    assert taken == []
    assert sorted(good.applied + missing.applied) == list(range(200))


async def test_refused_items_can_be_given_to_the_dead_letters(fake_clock: FakeClock) -> None:
    """`on_refused="dead_letter"`: the items leave at once, as permanent errors."""
    taken: list[int] = []

    async def take(batch: Batch[DeadLetterRecord[int]]) -> None:
        taken.extend(record.item for record in batch if record.error_class == "permanent")

    server = Server(lambda now, items: True)
    async with Batcher(
        stack(server, Retry(on_refused="dead_letter"), DeadLetter(take)),
        limits=Limits(max_items=10),
    ) as batcher:
        await batcher.add_many(range(20))
        assert (await batcher.flush()).complete
    assert taken == list(range(20))
    assert len(server.calls) == 2


async def test_a_refusal_is_given_up_after_the_time_that_was_asked_for(
    fake_clock: FakeClock,
) -> None:
    """`give_up_after` also applies to refusals; the items are rejected, because a refusal produces
    no dead letters.
    """
    server = Server(lambda now, items: True)
    async with Batcher(
        stack(server, Retry(give_up_after=30.0)), limits=Limits(max_items=10)
    ) as batcher:
        receipts = [await batcher.submit(item) for item in range(10)]
        assert (await batcher.flush()).complete
        assert 30.0 <= fake_clock.now() < 31.0
    assert {receipt.outcome for receipt in receipts} == {Outcome.REJECTED}


async def test_outside_a_batcher_a_refusal_fails_at_once(fake_clock: FakeClock) -> None:
    """For example in a replay or a Spark task: no log would show a wait there."""
    server = Server(lambda now, items: True)
    errors = await send(stack(server, Retry()), RowBatch([1, 2]))
    assert [str(error) for error in errors.values()] == [
        f"{FORBIDDEN}; to repair: give the token the right to write"
    ] * 2
    assert fake_clock.now() == pytest.approx(0.01)


async def test_keys_keep_their_order_behind_an_item_refused_alone(fake_clock: FakeClock) -> None:
    """I4: items behind the bad item of its key follow its verdict, and no item of a key is
    overtaken.
    """

    class Safe(Server):
        from sluicegate import Capabilities

        capabilities = Capabilities(key_prefix_safe=True)

        async def write(self, batch: Batch[int]) -> None:
            await self(batch)

    server = Safe(lambda now, items: 12 in items or 0.1 < now < 3.0)
    taken, dead_letter = letters()
    limits = Limits(max_items=20, workers=3, max_delay=0.05)
    async with Batcher(
        stack(server, Retry(), dead_letter), limits=limits, key=lambda item: item % 4
    ) as batcher:
        await batcher.add_many(range(200))
        assert (await batcher.flush(timeout=300.0)).complete
    assert taken == [12]
    for key in range(4):
        assert [item for item in server.applied if item % 4 == key] == [
            item for item in range(key, 200, 4) if item != 12
        ]


@pytest.mark.parametrize("asked", [1e308, float("inf"), 1_795_000_000.0, 10**400, "86400"])
async def test_a_retry_after_is_believed_up_to_a_bound(fake_clock: FakeClock, asked: Any) -> None:
    """With a Unix time or the year 9999, the sink continues after five minutes."""
    from sluicegate import ThrottledError, UnavailableError

    for make in (ThrottledError, UnavailableError):
        error = make("slow down")
        error.retry_after = asked
        steps = iter([error])

        async def once(batch: Batch[int], steps: Any = steps) -> None:
            for failure in steps:
                raise failure

        began = fake_clock.now()
        assert await send(stack(once, Retry()), RowBatch([1])) == {}
        assert fake_clock.now() - began <= 300.0 + 1e-6


@pytest.mark.parametrize("asked", [float("nan"), -5.0, "soon", None, b"", True])
async def test_a_retry_after_that_is_no_time_is_ignored(fake_clock: FakeClock, asked: Any) -> None:
    from sluicegate import TransientError

    error = TransientError("again")
    error.retry_after = asked  # type: ignore[attr-defined]
    steps = iter([error])

    async def once(batch: Batch[int]) -> None:
        for failure in steps:
            raise failure

    assert await send(stack(once, Retry(backoff=tenacity.wait_fixed(2.0))), RowBatch([1])) == {}
    assert fake_clock.now() == 2.0


async def test_giving_up_wins_over_a_retry_after(fake_clock: FakeClock) -> None:
    """One more attempt at the end of `give_up_after`; then the items fail."""
    from sluicegate import ThrottledError

    calls: list[float] = []

    async def always(batch: Batch[int]) -> None:
        calls.append(fake_clock.now())
        raise ThrottledError("slow down", retry_after=1e9)

    errors = await send(stack(always, Retry(give_up_after=60.0)), RowBatch([1]))
    assert isinstance(errors[0], ThrottledError)
    assert calls == [0.0, 60.0]


def test_a_refusal_has_a_class_of_its_own_and_means_permanent_where_it_is_given_up() -> None:
    async def nothing(batch: Batch[int]) -> None: ...

    error = RefusedError("no", repair="repair it")
    assert classified(error) is ErrorClass.REFUSED
    assert (
        classified(error, stack(nothing, Retry(on_refused="dead_letter")).classify)  # type: ignore[attr-defined]
        is ErrorClass.PERMANENT
    )
    assert error.repair == "repair it"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_refused": "ignore"}, r"on_refused.*'ignore'"),
        ({"max_retry_after": 0}, r"max_retry_after.*0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Retry(**arguments)
