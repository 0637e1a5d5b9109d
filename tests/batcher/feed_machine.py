"""A random run of a feed on virtual time, against a destination that knows the truth.

White box: the type of a feed, which no package exports.

1. No write begins with a row of a lost claim.
2. Per key the rows are first applied in the order of submission, and none is applied again once a
   later row of its key is delivered.
3. Every accepted row resolves its slip once; the tally adds up at all times; at the end nothing is
   inside, held or busy.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from feed_help import Row, Slip, key_of, tenant_of

from sluicegate import (
    Backoff,
    Batcher,
    Capabilities,
    ClosedError,
    DeadLetter,
    FanOut,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    TransientError,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate.errors import TimedOutError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from random import Random

    from sluicegate import Batch
    from sluicegate.batcher.feed import Feed
    from sluicegate.testing import FakeClock

HELD = (Outcome.UNKNOWN, Outcome.REJECTED)


class Truth:
    """The lost claims and the delivered rows."""

    def __init__(self, *, per_claim: bool) -> None:
        self._per_claim = per_claim
        self.broken: list[str] = []
        self.lost: set[str] = set()
        self.delivered: dict[Any, int] = defaultdict(lambda: -1)
        """The last delivered number of each key."""

    def rule(self, kept: bool, broken: str) -> None:
        """Record a broken rule; an exception would only be a failed write."""
        if not kept:
            self.broken.append(broken)

    def lane_of(self, row: Row) -> Any:
        return (row.claim, row.key) if self._per_claim else row.key


class Wild:
    """A destination that fails, forgets to answer, and ignores cancellations."""

    def __init__(self, random: Random, truth: Truth, *, prefix_safe: bool, ordered: bool) -> None:
        self.capabilities = Capabilities(key_prefix_safe=prefix_safe)
        self._applied: dict[Any, list[int]] = defaultdict(list)
        self._random = random
        self._truth = truth
        self._ordered = ordered
        self._is_tame = False
        self._checks_doubt = False

    def tame(self) -> None:
        """Succeed from now on."""
        self._is_tame = True

    def checks_doubt(self, *, yes: bool) -> None:
        """Whether a resubmitted row must be marked as possibly applied."""
        self._checks_doubt = yes

    def fails(self) -> bool:
        return not self._is_tame and self._random.random() < 0.3

    def check(self, rows: Sequence[Row]) -> None:
        late = [row for row in rows if row.claim in self._truth.lost]
        self._truth.rule(not late, f"sent after its claim was lost: {late}")

    async def write(self, batch: Batch[Row]) -> WriteResult | None:
        random = self._random
        self.check(batch)
        for index, row in enumerate(batch if self._checks_doubt else ()):
            again = row.number in self._applied[self._truth.lane_of(row)]
            self._truth.rule(not again or index in batch.maybe_applied, f"not marked: {row}")
        answer = "" if self._is_tame else random.choice(ANSWERS)
        seconds = random.random() * (6.0 if "slow" in answer else 0.3)
        await (_deaf(seconds) if "deaf" in answer else asyncio.sleep(seconds))
        if not answer or "slow" in answer or "apply" in answer:
            self._apply(batch)
        if "unknown" in answer:
            raise TimedOutError("no answer")
        if "away" in answer:
            raise UnavailableError("away")
        if "transient" in answer:
            raise TransientError("no")
        return self._some(batch) if "items" in answer else None

    def _some(self, batch: Batch[Row]) -> WriteResult:
        """Refuse one item, and the later items of its key."""
        bad = self._random.randrange(len(batch))
        kind = self._random.choice((TransientError, PermanentError))
        behind = [i for i in range(bad, len(batch)) if batch[i].key == batch[bad].key]
        self._apply([row for i, row in enumerate(batch) if i not in behind])
        return WriteResult.failed(batch, dict.fromkeys(behind, kind("this one")))

    def _apply(self, rows: Sequence[Row]) -> None:
        for row in rows:
            lane, number = self._truth.lane_of(row), row.number
            known = self._applied[lane]
            if self._ordered:
                is_next = number in known or number > max(known, default=-1)
                self._truth.rule(is_next, f"overtaken: {row}")
                self._truth.rule(
                    self._truth.delivered[lane] < number, f"behind a delivered one: {row}"
                )
            known.append(number)


ANSWERS = (
    *[""] * 6, "slow", "deaf slow", "transient", "transient", "items", "items",
    "unknown", "apply unknown", "away",
)  # fmt: skip


async def _deaf(seconds: float) -> None:
    task = asyncio.ensure_future(asyncio.sleep(seconds))
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue


class MachineSlip(Slip):
    """Reports the outcome of a row to its source."""

    def __init__(self, row: Row, source: Source) -> None:
        super().__init__(row.claim)
        self.row = row
        self._source = source

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        super().resolve(outcome, cause, detail)
        self._source.ended(self, outcome)


class Source:
    """Submits rows of claims, loses claims, and resubmits failed rows."""

    def __init__(
        self, random: Random, clock: FakeClock, feed: Feed[Row], truth: Truth, *, keyed: bool
    ) -> None:
        self.slips: dict[MachineSlip, int] = {}
        """The number of times each row was accepted."""
        self.tasks: set[asyncio.Task[None]] = set()
        self._random, self._clock, self._feed, self._truth = random, clock, feed, truth
        self._keyed = keyed
        self._bad: dict[Any, list[MachineSlip]] = defaultdict(list)
        self._numbers: dict[Any, int] = defaultdict(int)
        self._claims = ["c0", "c1"]
        self._made = 2

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def submit(self) -> None:
        random, slips = self._random, list[MachineSlip]()
        for _ in range(random.randrange(1, 14)):
            claim, key = random.choice(self._claims), random.choice("abcd")
            slips.append(MachineSlip(Row(claim, key, self._numbers[key]), self))
            self._numbers[key] += 1
        submission = self._feed.submit([slip.row for slip in slips], slips)
        task = asyncio.ensure_future(submission)
        if random.random() < 0.1:
            await self._clock.sleep(random.random())
            task.cancel()
        await asyncio.wait([task])
        refused = {index for index, _ in submission.refused}
        for index, slip in enumerate(slips[: submission.taken]):
            if index not in refused:
                self.slips[slip] = self.slips.get(slip, 0) + 1
        for slip in slips:
            self.slips.setdefault(slip, 0)

    def lose(self) -> None:
        place = self._random.randrange(2)
        lost, self._claims[place] = self._claims[place], f"c{self._made}"
        self._made += 1
        self._truth.lost.add(lost)
        self._feed.withdraw(lambda slip: slip.claim == lost)  # type: ignore[attr-defined]  # ours

    def ended(self, slip: MachineSlip, outcome: Outcome) -> None:
        row, truth = slip.row, self._truth
        if outcome.is_safe:
            lane = truth.lane_of(row)
            truth.delivered[lane] = max(truth.delivered[lane], row.number)
        elif outcome in HELD and row.claim not in truth.lost:
            lane = truth.lane_of(row) if self._keyed else row
            self._bad[lane].append(slip)
            if len(self._bad[lane]) == 1:
                self.start(self._bring_back(lane))

    async def _bring_back(self, lane: Any) -> None:
        await self._clock.sleep(self._random.random() * 2)
        bad = self._bad.pop(lane)
        alive = [slip for slip in bad if slip.row.claim not in self._truth.lost]
        alive.sort(key=lambda slip: slip.row.number)
        try:
            if not alive:
                self._feed.release(bad[0].row)
                return
            maybe = any(slip.outcomes[-1] is Outcome.UNKNOWN for slip in alive)
            self._feed.resubmit([slip.row for slip in alive], alive, maybe_applied=maybe)
        except ClosedError:
            return
        for slip in alive:
            self.slips[slip] = self.slips.get(slip, 0) + 1


def stack_of(random: Random, sinks: Callable[[], Wild]) -> tuple[Any, list[Wild]]:
    """A destination behind a random stack."""
    retry = Retry(attempts=random.choice((2, 4)), backoff=Backoff(base=0.2, rng=random))
    made = [sinks()]
    kind = random.choice(("bare", "retry", "letters", "fan out"))
    if kind == "bare":
        return made[0], made
    if kind == "retry":
        return stack(made[0], retry), made
    if kind == "letters":
        letters = Letters(made[0])
        return stack(made[0], retry, DeadLetter(stack(letters, retry))), made
    made.append(sinks())
    other = Retry(attempts=3, backoff=Backoff(base=0.3, rng=random))
    return FanOut(stack(made[0], retry), stack(made[1], other)), made


class Letters:
    """Accepts no dead letter of a lost claim."""

    def __init__(self, beside: Wild) -> None:
        self._beside = beside

    async def write(self, batch: Batch[Any]) -> None:
        self._beside.check([record.item for record in batch])
        await asyncio.sleep(0.1)
        if self._beside.fails():
            raise TransientError("no")


async def run(clock: FakeClock, random: Random) -> None:
    """One run; raises `AssertionError` if a rule is broken."""
    mode = random.choice(("plain", "keyed", "keyed", "keyed", "tenants", "tenants and keys"))
    keyed, tenants = "key" in mode, "tenants" in mode
    truth = Truth(per_claim=tenants)
    safe = keyed and random.random() < 0.5

    def sink() -> Wild:
        return Wild(random, truth, prefix_safe=safe, ordered=keyed)

    whole, made = stack_of(random, sink)
    single = len(made) == 1
    for each in made:
        each.checks_doubt(yes=single)
    sized = random.random() < 0.3
    limits = Limits(
        max_items=random.choice((1, 2, 3)),
        max_delay=random.choice((0.0, 0.05, 0.5)),
        workers=random.choice((1, 3)),
        max_pending_items=random.choice((12, 30)),
        flush_timeout=2.0,
        max_bytes=random.choice((None, 7)) if sized else None,
        max_pending_bytes=40 if sized else None,
    )
    batcher: Batcher[Row] = Batcher(
        whole,
        limits=limits,
        clock=clock,
        key=key_of if keyed else None,
        tenant=tenant_of if tenants else None,
        size_of=(lambda _: 3) if sized else None,
    )
    async with batcher:
        source = Source(random, clock, batcher.feed(HELD), truth, keyed=keyed)
        producer = asyncio.ensure_future(_produce(source, clock, random, batcher))
        await producer
        for each in made:
            each.tame()
        if random.random() < 0.3:
            await batcher.shutdown(random.random() * 3)
            await clock.sleep(20)
        else:
            await _settle(source, clock, batcher)
        assert batcher.report is not None or not batcher.tally().inside
        await batcher.shutdown(1)
    assert batcher.report is not None
    batcher.report.verify()
    assert not truth.broken, truth.broken
    while source.tasks:
        await asyncio.wait(source.tasks)
    told = {slip: len(slip.outcomes) for slip in source.slips}
    assert told == source.slips, "not once per acceptance"
    tally = batcher.report.tally
    assert tally.accepted == sum(source.slips.values())
    for outcome in Outcome:
        assert tally.of(outcome) == sum(slip.outcomes.count(outcome) for slip in source.slips)
    assert tally.lost == 0, "a source has the items that fail"


async def _produce(source: Source, clock: FakeClock, random: Random, batcher: Batcher[Row]) -> None:
    submission: asyncio.Task[None] | None = None
    for _ in range(40):
        if submission is None or submission.done():
            submission = asyncio.ensure_future(source.submit())
        await clock.sleep(random.random() * 0.3)
        if random.random() < 0.15:
            source.lose()
        batcher.tally().verify()
        assert batcher.tally().lost == 0
    source.start(_ended(submission))


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await task


async def _settle(source: Source, clock: FakeClock, batcher: Batcher[Row]) -> None:
    for _ in range(60):
        await clock.sleep(5)
        stats = batcher.stats()
        is_writing = len(batcher._dispatcher.flights) > 0
        if not (source.tasks or batcher.tally().inside or stats.held_keys or is_writing):
            break
    else:
        raise AssertionError(f"does not settle: {batcher.stats()}")
    await batcher.flush()
    gatherer: Any = batcher._dispatcher.gathering.gatherer
    assert not getattr(gatherer, "active", ())
    assert not (len(gatherer) if hasattr(gatherer, "__len__") else 0)
    assert not batcher._dispatcher.flights.doubts.count
