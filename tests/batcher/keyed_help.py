"""A destination that checks order per key, and records each violation."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sluicegate import Capabilities, DeadLetter, Limits, PermanentError, WriteResult, stack
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sluicegate import Batch


class Lane(NamedTuple):
    """A key within its tenant."""

    tenant: Any
    key: Any


class Item(NamedTuple):
    """Item `number` of its key; with tenants, of its lane."""

    key: Any
    number: int


def key_of(item: Item) -> Any:
    return item.key.key if isinstance(item.key, Lane) else item.key


def tenant_of(item: Item) -> Any:
    return item.key.tenant if isinstance(item.key, Lane) else None


def some(key: Any, start: int, end: int) -> list[Item]:
    return [Item(key, number) for number in range(start, end)]


def items(*spec: str) -> list[Item]:
    """`items("a", "b", "a")` are the first of a, the first of b, and the second of a."""
    return [Item(key, spec[:place].count(key)) for place, key in enumerate(spec)]


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {"max_items": 3, "max_delay": 1.0, "workers": 2, "flush_timeout": 1000.0}
    return Limits(**{**most, **given})


def on_virtual_time(main: Callable[[FakeClock], Coroutine[Any, Any, None]]) -> None:
    with FakeClock() as clock:
        clock.run(main(clock))


class Destination:
    """Applies what `perform` says, and checks that no key is in two concurrent writes and that a
    batch keeps the order of its keys.
    """

    def __init__(
        self, perform: Callable[[Any, Batch[Item]], Any] | None = None, *, prefix_safe: bool = False
    ) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self.batches: list[tuple[Item, ...]] = []
        self.reasons: list[str] = []
        self.applied: dict[Any, list[int]] = defaultdict(list)
        self.broken: list[str] = []
        self.running: list[set[Any]] = []
        self.most_running = 0
        self._perform = perform

    async def write(self, batch: Batch[Item]) -> WriteResult | None:
        keys = {item.key for item in batch}
        twice = [key for running in self.running for key in running & keys]
        if twice:
            self.broken.append(f"keys {twice} are in two writes at once")
        if not self.capabilities.key_prefix_safe and len(keys) < len(batch):
            self.broken.append(f"several items of a key in one write: {tuple(batch)}")
        if batch.keys is None or list(map(key_of, batch)) != list(batch.keys):
            self.broken.append(f"{batch.keys} are not the keys of {tuple(batch)}")
        if set(map(tenant_of, batch)) != {batch.tenant}:
            self.broken.append(f"{batch.tenant} is not the tenant of {tuple(batch)}")
        for key in keys:
            numbers = [item.number for item in batch if item.key == key]
            if numbers != sorted(numbers):
                self.broken.append(f"a batch out of order: {tuple(batch)}")
        self.batches.append(tuple(batch))
        self.reasons.append(batch.reason.value)
        self.running.append(keys)
        self.most_running = max(self.most_running, len(self.running))
        try:
            if self._perform is None:
                self.apply(*batch)
                return None
            result: WriteResult | None = await self._perform(self, batch)
            return result
        finally:
            self.running.remove(keys)

    def apply(self, *items: Item) -> None:
        for item in items:
            self.applied[item.key].append(item.number)


class Gate(Destination):
    """Writes wait until each is released, oldest first."""

    def __init__(self, *, prefix_safe: bool = False) -> None:
        super().__init__(type(self).wait, prefix_safe=prefix_safe)
        self._gates: list[tuple[asyncio.Future[None], tuple[Item, ...]]] = []

    async def wait(self, batch: Batch[Item]) -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.append((gate, tuple(batch)))
        await gate
        self.apply(*batch)

    @property
    def waiting(self) -> list[tuple[Item, ...]]:
        """The items of the waiting writes."""
        return [items for gate, items in self._gates if not gate.done()]

    def open(self, place: int = 0, error: BaseException | None = None) -> None:
        gate = [gate for gate, _ in self._gates if not gate.done()][place]
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)


class Setting:
    """A destination that refuses the items in `bad`, and dead letters around it. Both take
    `seconds` per write.
    """

    def __init__(
        self, *bad: Item, prefix_safe: bool = False, dead_letters: bool = True, seconds: float = 0.1
    ) -> None:
        self.seconds = seconds
        self.bad = set(bad)
        self.sink = Destination(self._perform, prefix_safe=prefix_safe)
        self.letters: list[Any] = []
        self.most_letters_at_once = 0
        self._burying = 0
        self.stack = stack(self.sink, DeadLetter(self._bury)) if dead_letters else self.sink

    async def _perform(self, sink: Destination, batch: Batch[Item]) -> WriteResult:
        await asyncio.sleep(self.seconds)
        errors: dict[int, BaseException] = {}
        failed: set[Any] = set()
        for index, item in enumerate(batch):
            if item in self.bad or (sink.capabilities.key_prefix_safe and item.key in failed):
                errors[index] = PermanentError(f"{item} is bad")
                failed.add(item.key)
        sink.apply(*(item for index, item in enumerate(batch) if index not in errors))
        return WriteResult.failed(batch, errors)

    async def _bury(self, batch: Batch[Any]) -> None:
        self._burying += 1
        self.most_letters_at_once = max(self.most_letters_at_once, self._burying)
        await asyncio.sleep(self.seconds)
        self.letters += batch
        self._burying -= 1

    @property
    def buried(self) -> list[int]:
        return [letter.item.number for letter in self.letters]
