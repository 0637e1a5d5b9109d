"""Keys and tenants with their own hash or equality: refused by `add` or kept apart, without effect
on other items.

White box: the identity and the text of a key.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluicegate import (
    Batch,
    Batcher,
    ItemFailed,
    Limits,
    Outcome,
    PermanentError,
    RowBatch,
    WriteResult,
    gather,
)
from sluicegate._core.delivery.delivery import Delivery
from sluicegate._core.order.keys import identity, shown
from sluicegate._core.order.left_out import leaders
from sluicegate.batcher import Tenants
from sluicegate.testing import BlockingSink, FakeClock, FakeSink


class Changing:
    """Its hash and equality follow its name, which changes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changing) and other.name == self.name


class Quarrelsome:
    """Raises when it is compared with another one, once `angry`; all have the same hash."""

    angry = False

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if self.angry and other is not self:
            raise RuntimeError("not with that one")
        return self is other


class Restless:
    """A different hash each time."""

    count = 0

    def __hash__(self) -> int:
        self.count += 1
        return self.count


class NoEquality:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("never")

    def __hash__(self) -> int:
        return 1


class Vague:
    """Its equality is not a truth value, as with arrays."""

    class Answer:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    def __eq__(self, other: object) -> Any:
        return self.Answer()

    def __hash__(self) -> int:
        return 1


class NoHash:
    def __hash__(self) -> int:
        raise RuntimeError("no hash today")

    def __repr__(self) -> str:
        raise RuntimeError("no repr either")


REFUSED = [
    Restless(),
    NoEquality(),
    Vague(),
    NoHash(),
    float("nan"),
    (1, float("nan")),
    [1],
    (NoEquality(),),
]


@pytest.mark.parametrize("name", ["key", "tenant"])
@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
async def test_what_cannot_be_told_from_others_is_refused_at_add(
    fake_clock: FakeClock, name: str, value: object
) -> None:
    """The error is clear, and no item is accepted."""
    sink: FakeSink[Any] = FakeSink()
    arguments: Any = {name: lambda item: value if item == "odd" else item}
    async with Batcher(sink, limits=Limits(max_items=5), **arguments) as batcher:
        await batcher.add("before")
        with pytest.raises(TypeError, match=f"cannot be a {name}"):
            await batcher.add("odd")
        with pytest.raises(TypeError, match=f"cannot be a {name}"):
            await batcher.submit("odd")
        await batcher.add("after")
        assert await batcher.flush(timeout=5.0)
    assert sink.applied == ["before", "after"]
    assert batcher.tally().accepted == 2


@pytest.mark.parametrize(
    "arguments",
    [{"tenants": Tenants(max_pending_items=2)}, {}, {"overflow": "drop_oldest"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["key", "tenant"])
async def test_one_whose_hash_changes_while_its_items_are_inside_hurts_nobody(
    fake_clock: FakeClock, name: str, arguments: dict[str, Any]
) -> None:
    """It counts as another key from then on; pending items of the first key leave as usual."""
    if "tenants" in arguments and name == "key":
        pytest.skip("tenants need tenant=")
    sink: BlockingSink[tuple[Changing, int]] = BlockingSink()
    one, other = Changing("one"), Changing("other")
    given: Any = {name: lambda item: item[0], **arguments}
    async with Batcher(
        sink, limits=Limits(max_items=1, workers=8, max_pending_items=50), **given
    ) as batcher:
        receipts = [
            await batcher.submit((one, 1)),
            await batcher.submit((one, 2)),
            await batcher.submit((other, 3)),
        ]
        await sink.wait_for_call()
        one.name = "changed"
        receipts += [await batcher.submit((one, 4)), await batcher.submit((other, 5))]
        other.name = "changed too"
        await batcher.flush(timeout=0.0)
        sink.release()
        assert set(await gather(receipts)) == {Outcome.DELIVERED}
        (await batcher.shutdown()).verify()
        assert batcher.stats().tenants == 0
    numbers = [number for _, number in sink.applied]
    assert sorted(numbers) == [1, 2, 3, 4, 5]
    assert numbers.index(1) < numbers.index(2)
    assert numbers.index(3) < numbers.index(5)


@pytest.mark.parametrize("name", ["key", "tenant"])
async def test_one_that_raises_when_it_is_compared_with_others_is_a_key_of_its_own(
    fake_clock: FakeClock, name: str
) -> None:
    """Even if it begins to raise while its items are pending."""
    sink: BlockingSink[tuple[Quarrelsome, int]] = BlockingSink()
    several = [Quarrelsome() for _ in range(4)]
    given: Any = {name: lambda item: item[0]}
    async with Batcher(sink, limits=Limits(max_items=1, workers=3), **given) as batcher:
        receipts = [await batcher.submit((one, number)) for number in range(2) for one in several]
        await sink.wait_for_call()
        for one in several:
            one.angry = True
        receipts += [await batcher.submit((one, 2)) for one in several]
        sink.release()
        assert set(await gather(receipts)) == {Outcome.DELIVERED}
        (await batcher.shutdown()).verify()
        assert batcher.stats().tenants == 0
    for one in several:
        assert [number for each, number in sink.applied if each is one] == [0, 1, 2]


@pytest.mark.parametrize("policy", ["pause", "fail"])
async def test_a_key_that_changes_while_it_is_held_stays_held(
    fake_clock: FakeClock, policy: Any
) -> None:
    """A shutdown returns the items behind it, and nothing hangs."""

    async def write(batch: Batch[tuple[Changing, int]]) -> WriteResult:
        return WriteResult.failed(
            batch, {i: PermanentError("p") for i, (_, number) in enumerate(batch) if number == 0}
        )

    key = Changing("one")
    async with Batcher(
        write, limits=Limits(max_items=1), key=lambda item: item[0], on_key_failure=policy
    ) as batcher:
        receipts = [await batcher.submit((key, number)) for number in range(3)]
        key.name = "changed"
        with pytest.raises(ItemFailed):
            await receipts[0]
        assert await batcher.deliver((key, 7)) is Outcome.DELIVERED
        report = await batcher.shutdown()
    report.verify()
    assert report.tally.delivered == 1


async def test_the_last_resort_is_given_one_tenant_at_a_time_though_they_cannot_be_compared(
    fake_clock: FakeClock,
) -> None:
    """Otherwise it would not end."""
    several = [Quarrelsome() for _ in range(3)]
    taken: list[list[int]] = []

    async def last_resort(batch: Batch[tuple[Quarrelsome, int]]) -> None:
        taken.append([number for _, number in batch])

    sink: BlockingSink[tuple[Quarrelsome, int]] = BlockingSink()
    batcher = Batcher(
        sink,
        limits=Limits(max_items=9, max_delay=99.0),
        tenant=lambda item: item[0],
        last_resort=last_resort,
    )
    async with batcher:
        for number, one in enumerate(several):
            await batcher.add_many([(one, number)] * 2)
        for one in several:
            one.angry = True
        report = await batcher.shutdown(1.0)
    report.verify()
    assert taken == [[1, 1], [2, 2]]
    assert (report.tally.unknown, report.tally.dead_lettered) == (2, 4)


def test_keys_that_only_look_alike_lead_no_other_in_a_write() -> None:
    """`1` and `True` are two keys, as everywhere. A changed key precedes itself."""
    changed = Changing("one")
    keys = [1, True, 1, changed, NoEquality(), changed]
    batch = RowBatch(range(6), keys=keys, delivery=Delivery(6, keeps_prefix=True))
    changed.name = "two"
    errors: dict[int, BaseException] = dict.fromkeys(range(6), PermanentError("p"))
    assert leaders(batch, errors) == {2: 0, 5: 3}


def test_an_odd_key_is_one_object_for_as_long_as_it_is_known() -> None:
    """So no entry stored by it is ever compared; no entry remains afterwards."""
    known = identity(Changing("one"))
    assert identity(Changing("one")) is known
    assert identity(Changing("two")) is not known
    assert isinstance(shown(known), Changing)
