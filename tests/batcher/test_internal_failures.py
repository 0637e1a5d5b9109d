"""An exception at any internal step of a batcher: nothing hangs, and every item is accounted for.

White box: the steps themselves, made to raise.

One run lists the batcher's own functions that a scenario calls after the batcher is open. Then one
of their calls raises, once per run, as it begins: so `MemoryError` and `RecursionError` come, and
so do errors of a clock, a task factory or Sluicegate itself.

White box: every private step of a batcher raises once.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sluicegate
from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    Limits,
    Observer,
    Outcome,
    PermanentError,
    Receipt,
    Retry,
    TransientError,
    stack,
)
from sluicegate.batcher.inbox import InboxBatcher
from sluicegate.batcher.ledger import Ledger
from sluicegate.batcher.setup import checked_setup
from sluicegate.errors import BatcherBroken
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from types import CodeType, FrameType

HOME = Path(sluicegate.__file__).parent
STEPS = (
    str(HOME / "batcher"),
    str(HOME / "batcher/ledger.py"),
    str(HOME / "_core/delivery"),
    str(HOME / "testing/clock.py"),
    str(HOME / "testing/virtual_loop.py"),  # the clock's and the loop's calls, as they begin
    asyncio.base_events.__file__,
)
CALLERS = str(HOME / "batcher")
NO_STEPS = {"<genexpr>", "_wake_up", "call_soon"}
"""Resumed by a deallocation; the end of a thread's call whose item is accepted; asyncio's own."""
COUNT = 8


@pytest.fixture(autouse=True)
def _undisturbed() -> Iterator[None]:
    """No step is a finaliser of what another test has left behind."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Fault(Exception):
    """Raised at an internal step."""


class Steady(Backoff):
    def __call__(
        self, tries: int, error: BaseException | None = None, waited: float = 0.0
    ) -> float:
        return 1.0


@dataclass
class Tracer:
    """Counts the calls of internal functions, and raises in one of them."""

    target: tuple[str, int] | None = None
    seen: Counter[str] = field(default_factory=Counter[str])
    struck_at: float | None = None
    clock: FakeClock = field(default_factory=FakeClock)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (name := step_of(frame.f_code)) or not is_ours(frame):
            return
        self.seen[name] += 1
        if (name, self.seen[name]) == self.target:
            sys.setprofile(None)
            self.struck_at = self.clock.now()
            raise Fault(f"{name}, call {self.seen[name]}")


PURE = ("Agenda.", "Countdown.", "Ledger.", "Parking.", "Waiter.", "own_context")
"""Sums and queues that call no code of a program, so only the interpreter makes them fail: that is
not covered, and a `MemoryError` at the start of `Waiter.grant` would leave its producer waiting.
"""
_names: dict[int, tuple[str, CodeType]] = {}
"""By identity: the hash of a code object reads all of it."""


def step_of(code: CodeType) -> str:
    """The function's name, if it is one of the steps."""
    if id(code) not in _names:
        file = code.co_filename
        is_step = (
            file.startswith(STEPS)
            and code.co_name not in NO_STEPS
            and not code.co_qualname.startswith(PURE)
        )
        name = f"{Path(file).stem}.{code.co_qualname}" if is_step else ""
        _names[id(code)] = name, code  # which stays alive, so that its identity stays its own
    return _names[id(code)][0]


def is_ours(frame: FrameType) -> bool:
    """Whether the batcher calls the function, and not the event loop, a sink or the program."""
    caller = frame.f_back
    if caller is None or caller.f_code.co_name == "__del__":
        return False
    return caller.f_code.co_filename.startswith(CALLERS)


class Sink:
    """Writes in half a second; the first write fails, and item 13 is bad."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.calls = 0

    async def write(self, batch: Batch[int]) -> None:
        self.calls += 1
        call = self.calls
        await asyncio.sleep(0.5)
        if call == 1:
            raise TransientError("once")
        if 13 in batch:
            batch.settle([i for i, item in enumerate(batch) if item != 13], Outcome.DELIVERED)
            self.applied.extend(item for item in batch if item != 13)
            raise PermanentError("bad")
        self.applied.extend(batch)


class Story:
    """One run: producers that wait for room, a flush, and a shutdown."""

    def __init__(self, clock: FakeClock, options: dict[str, Any]) -> None:
        self.clock = clock
        self.sink = Sink()
        self.accepted: list[int] = []
        self.refused: list[int] = []
        self.receipts: dict[int, Receipt] = {}
        self.raised: list[BaseException] = []
        self.calls: list[tuple[float, float]] = []
        """Beginnings and ends of calls that a failure ends at once."""
        limits = Limits(max_items=3, max_delay=1.0, workers=2, max_pending_items=9)
        limits = options.pop("limits", limits)
        sink = stack(self.sink, Retry(attempts=3, backoff=Steady()))
        self.batcher: Batcher[int] = self.make(
            sink, limits=limits, shutdown_deadline=20.0, clock=clock, **options
        )
        self.open, self.shutdown = self.batcher.__aenter__, self.batcher.shutdown

    def make(self, *args: Any, **options: Any) -> Batcher[int]:
        return Batcher(*args, **options)

    async def run(self, tracer: Tracer) -> None:
        asyncio.get_running_loop().set_exception_handler(self.heard)
        await self.open()
        sys.setprofile(tracer)
        try:
            produced = [asyncio.create_task(self.produce(n)) for n in range(3)]
            flushing = asyncio.create_task(self.attempt(self.batcher.flush(30.0)))
            await asyncio.gather(*produced)
            await flushing
            await self.clock.sleep(0.1)
            try:
                await self.shutdown()
            except Fault as error:
                self.raised.append(error)
                await self.shutdown()
        finally:
            sys.setprofile(None)

    def heard(self, loop: object, context: dict[str, Any]) -> None:
        self.raised.append(context.get("exception") or RuntimeError(context["message"]))

    async def produce(self, number: int) -> None:
        for n in range(COUNT):
            item = number * COUNT + n
            match n % 4:
                case 0 | 1:
                    await self.attempt(self.batcher.add(item), item)
                case 2:
                    receipt = await self.attempt(self.batcher.submit(item), item)
                    if isinstance(receipt, Receipt):
                        self.receipts[item] = receipt
                        await self.outcome_of(receipt)
                case _:
                    items = [item + 100, item + 200]
                    await self.attempt(self.batcher.add_many(items), *items)

    async def outcome_of(self, receipt: Receipt) -> None:
        try:
            await receipt.settled()
        except Fault as error:
            self.raised.append(error)

    async def attempt(self, call: Coroutine[Any, Any, object], *items: int) -> object:
        began = self.clock.now()
        try:
            result = await call
        except Exception as error:
            self.raised.append(error)
            self.refused.extend(items)
            return None
        finally:
            self.calls.append((began, self.clock.now()))
        self.accepted.extend(items)
        return result

    def check(self, log: str, at: float) -> None:
        report = self.batcher.report
        assert report is not None
        report.verify()
        assert not [item for item in self.receipts if self.receipts[item].outcome is None]
        tally, broken = report.tally, self.batcher._dispatcher.lifecycle.broken
        counts = Counter(self.sink.applied)
        assert max(counts.values(), default=1) == 1
        for item, receipt in self.receipts.items():
            if receipt.outcome is Outcome.DELIVERED:
                assert item in counts
            elif receipt.outcome in {Outcome.UNSENT, Outcome.REJECTED}:
                assert item not in counts
        assert tally.delivered <= len(counts) <= tally.delivered + tally.unknown
        assert tally.accepted == len(self.accepted)
        assert not counts.keys() & {*self.refused}
        slots = self.batcher._dispatcher.slots
        assert (slots.used, len(self.batcher._dispatcher.flights)) == (0, 0)
        if broken is None:
            assert self.raised or Fault.__name__ in log, "the failure is swallowed"
            ended = tally.delivered + tally.rejected + tally.unknown + tally.dropped
            assert ended == tally.accepted
        else:
            assert "is broken and takes no more items" in log
            assert report.seconds < 3
            assert all(end <= at for began, end in self.calls if began <= at)


class ThreadStory(Story):
    """Items come through the inbox of a `BlockingBatcher`, without its thread."""

    def make(self, *args: Any, **options: Any) -> Batcher[int]:
        setup = checked_setup(*args, **options)
        self.inner: InboxBatcher[int] = InboxBatcher(
            setup, lambda: self.clock.loop.call_soon(self.inner.take_in)
        )
        return self.inner

    async def run(self, tracer: Tracer) -> None:
        self.open = self.inner.open  # type: ignore[assignment]
        self.shutdown = lambda: self.inner.shut_down(20.0, admit_waiting=False)  # type: ignore[assignment,misc]
        await super().run(tracer)

    async def produce(self, number: int) -> None:
        for n in range(COUNT):
            item, receipt = number * COUNT + n, Receipt()
            await self.attempt(self.put(item, receipt), item)
            if n % 4 == 2 and item in self.accepted:
                self.receipts[item] = receipt
                await self.outcome_of(receipt)

    async def put(self, item: int, receipt: Receipt) -> None:
        entries = self.inner.entries((item,), (receipt,))
        if entries is None or not self.inner.inbox.put_all(entries):
            await self.inner.let_in((item,), (receipt,), None)


STORIES: dict[str, type[Story]] = {"threads": ThreadStory}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "observed": {"observers": [Observer()]},
    "measured": {
        "size_of": lambda item: item + 1,
        "limits": Limits(max_items=3, max_bytes=900, max_delay=1.0, workers=2, max_pending_items=9),
    },
    "dropping": {"overflow": "drop_oldest"},
    "threads": {},
    "keyed": {"key": lambda item: item % 5},
    "tenants": {"tenant": lambda item: item % 3},
    "keyed tenants": {"tenant": lambda item: item % 2, "key": lambda item: item % 5},
}


def play(kind: str, target: tuple[str, int] | None) -> tuple[Story, Tracer]:
    with FakeClock() as clock:
        tracer = Tracer(target, clock=clock)
        story = STORIES.get(kind, Story)(clock, dict(OPTIONS[kind]))
        clock.run(story.run(tracer))
    return story, tracer


def failures_of(kind: str, caplog: pytest.LogCaptureFixture, *, every: bool) -> list[str]:
    """Raise in the first call of each step, or also in the middle and the last one."""
    story, tracer = play(kind, None)
    assert story.batcher.report is not None
    assert story.batcher.report.tally.delivered
    assert len(tracer.seen) > 150
    failures: list[str] = []
    for name, count in tracer.seen.items():
        for n in sorted({1, (count + 1) // 2, count}) if every else (1,):
            caplog.clear()
            try:
                told, struck = play(kind, (name, n))
                assert struck.struck_at is not None
                told.check(caplog.text, struck.struck_at)
            except BaseException as error:
                failures.append(f"{name} {n}/{count}: {type(error).__name__} {str(error)[:150]}")
    return failures


def test_a_failure_at_any_step_is_told_to_everyone_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """batcher/B48, B-T31: at the first call of every step."""
    assert not failures_of("plain", caplog, every=False)


@pytest.mark.long
@pytest.mark.parametrize("kind", OPTIONS)
def test_a_failure_at_a_later_call_of_any_step_is_no_different(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same, also at the middle and the last call, for every kind of batcher."""
    assert not failures_of(kind, caplog, every=True)


async def unwritten(batch: Batch[int]) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("kind", "owner", "step"),
    [
        *[(kind, FakeClock, "now") for kind in OPTIONS if kind not in {"threads", "measured"}],
        *[(kind, Ledger, "entered") for kind in OPTIONS if kind != "threads"],
    ],
)
async def test_a_refused_item_takes_no_equal_item_with_it(
    fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch, kind: str, owner: Any, step: str
) -> None:
    """Items are told apart although they are one object, such as a small number."""

    def fails(*args: Any) -> Any:
        monkeypatch.undo()
        raise Fault

    options: dict[str, Any] = OPTIONS[kind] | {
        "limits": Limits(max_items=9, max_bytes=900 if kind == "measured" else None, max_delay=60.0)
    }
    async with Batcher(unwritten, clock=fake_clock, **options) as batcher:
        receipts = [await batcher.submit(item) for item in (1, 2, 3)]
        monkeypatch.setattr(owner, step, fails)
        with pytest.raises((BatcherBroken, Fault)):
            await (batcher.add(2) if kind == "measured" else batcher.add_many([2]))
        report = await batcher.shutdown()
    report.verify()
    assert [receipt.outcome for receipt in receipts] == [Outcome.UNSENT] * 3
    assert sorted(report.unsent) == [1, 2, 3]
