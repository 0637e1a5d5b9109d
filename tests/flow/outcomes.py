"""The effect of each row outcome on its record, on the position and on the rows behind it.

Every case runs on virtual time with every `poison`, with and without dead letters; the cells
are derived from observed runs. Cases and options that make no difference share a line.
`PYTHONPATH=src python tests/flow/outcomes.py` prints the table; `write` inserts it into the page.

White box: the names of strategies and the type of a pipe's report are private.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from piping import P0, key_of, records

from sluicegate import (
    Batcher,
    Capabilities,
    DeadLetter,
    Limits,
    Outcome,
    PermanentError,
    Retry,
    RetryPolicy,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    flow,
    stack,
)
from sluicegate.consumer import MemoryLog, MemoryParkStore, MemorySource, Poison, Skip
from sluicegate.consumer.failures.poison import STRATEGIES
from sluicegate.errors import StoredRowDiffers
from sluicegate.sinks import MemorySink
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Batch
    from sluicegate.consumer.failures.poison import PoisonStrategy
    from sluicegate.flow.pipe import PipeReport

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "source-into-postgresql.md"
HEAD = """\
| a row of the record | `poison` | `dead_letters` | the record | the position | later rows of its key |
|---|---|---|---|---|---|
"""
KEYS = "abab"
"""The keys of the records: the examined record is first and has a later record of its key."""
LATER = 2
WATCHED = 60.0
"""Virtual seconds until the run is inspected."""

Answer = Outcome | BaseException


class DurableStore(MemoryParkStore):
    """A park store that outlives the pipes of a run."""

    is_durable = True


@dataclass(frozen=True)
class Case:
    """What happens to the only row of the first record, or in place of that row."""

    title: str
    answers: tuple[Answer, ...] = ()
    """The results or errors of its writes in order; the last one repeats."""
    transform: Callable[[Any], object] | None = None
    size: int = 1
    """The size of the row; the batcher's capacity is 100."""
    letters_in_stack: bool = False
    is_cut: bool = False
    """Whether the pipe stops without drain time while the row backs off."""
    outcome: Outcome | None = None
    """Its outcome in the batcher, at least once; `None` if it never reaches the batcher."""


def _raises(message: Any) -> object:
    if message.offset == 0:
        raise ValueError("no JSON")
    return message.record


def _skips(message: Any) -> object:
    return Skip() if message.offset == 0 else message.record


def _none(message: Any) -> object:
    return None if message.offset == 0 else message.record


_REFUSED = PermanentError("a constraint")
_AWAY = UnavailableError("away")
_UNKNOWN = UnknownOutcomeError("the answer was lost")
_DIFFERS = StoredRowDiffers("the stored row has other contents")

CASES = (
    Case("`delivered`", (Outcome.DELIVERED,), outcome=Outcome.DELIVERED),
    Case("`duplicate`", (Outcome.DUPLICATE,), outcome=Outcome.DUPLICATE),
    Case("`spooled`", (Outcome.SPOOLED,), outcome=Outcome.SPOOLED),
    Case(
        "`dead_lettered`, by a `DeadLetter` of the stack",
        (_REFUSED,),
        letters_in_stack=True,
        outcome=Outcome.DEAD_LETTERED,
    ),
    Case("no row: the transform returns `None` or `[]`", transform=_none),
    Case("no row: the transform returns `Skip()`", transform=_skips),
    Case("`unknown`, then delivered", (_UNKNOWN, Outcome.DELIVERED), outcome=Outcome.UNKNOWN),
    Case(
        "`rejected` by an error that may pass, then delivered",
        (_AWAY, Outcome.DELIVERED),
        outcome=Outcome.REJECTED,
    ),
    Case("`unsent`, at a drain", (_AWAY,), is_cut=True, outcome=Outcome.UNSENT),
    Case("`rejected` for good", (_REFUSED,), outcome=Outcome.REJECTED),
    Case("`unknown`, until its attempts are used up", (_UNKNOWN,), outcome=Outcome.UNKNOWN),
    Case(
        "`unknown`, since the stored row differs (`StoredRowDiffers`)",
        (_DIFFERS,),
        outcome=Outcome.UNKNOWN,
    ),
    Case("no row: the transform raises", transform=_raises),
    Case("refused by the batcher, such as `ItemTooLarge`", size=1_000),
)
OPTIONS: tuple[tuple[PoisonStrategy, bool], ...] = tuple(
    (strategy, letters)
    for strategy in STRATEGIES
    for letters in (True, False)
    if strategy != "exit"  # ends the pipe
    if letters or strategy != "block_and_dead_letter"  # requires dead letters
)


class Told(NamedTuple):
    """The observed cells of a line."""

    record: str
    position: str
    later: str


@dataclass
class Scripted:
    """A destination that handles the first record as the case prescribes."""

    answers: tuple[Answer, ...]
    log: MemoryLog
    capabilities: ClassVar[Capabilities] = Capabilities(key_prefix_safe=False)
    applied: list[int] = field(default_factory=list[int])
    tries: int = 0
    passed_early: bool = False
    """Whether a later attempt found a later row of the key applied or the position advanced."""

    async def write(self, batch: Batch[Any]) -> WriteResult:
        """Apply all rows that the case does not fail."""
        outcomes: list[Any] = []
        for row in batch:
            answer = self._answer() if row.offset == 0 else Outcome.DELIVERED
            outcomes.append(answer)
            if isinstance(answer, Outcome):
                self.applied.append(row.offset)
        return WriteResult.from_outcomes(batch, outcomes)

    def _answer(self) -> Answer:
        if self.tries and (LATER in self.applied or self.log.start(P0).offset > 0):
            self.passed_early = True
        self.tries += 1
        return self.answers[min(self.tries, len(self.answers)) - 1]


class Run:
    """A pipe over four records, with all the places where they can end up."""

    def __init__(
        self, case: Case, clock: FakeClock, strategy: PoisonStrategy, *, letters: bool
    ) -> None:
        self.case = case
        self.clock = clock
        self.log = MemoryLog(records(KEYS))
        self.sink = Scripted(case.answers or (Outcome.DELIVERED,), self.log)
        self.stack_letters: MemorySink[Any] = MemorySink()
        self.letters: MemorySink[Any] | None = MemorySink() if letters else None
        self.store = DurableStore() if strategy == "park_key" else None
        self.strategy: PoisonStrategy = strategy

    def pipe(self) -> flow.Pipe:
        """A pipe whose source waits for more records at its end."""
        sink: Any = self.sink
        if self.case.letters_in_stack:
            sink = stack(sink, DeadLetter(self.stack_letters))
        if self.case.is_cut:
            sink = stack(sink, Retry())
        batcher: Batcher[Any] = Batcher(
            sink,
            key=key_of,
            size_of=lambda row: self.case.size if row.offset == 0 else 1,
            limits=Limits(max_items=1, max_delay=0.1, max_pending_bytes=100),
            clock=self.clock,
        )
        return flow.pipe(
            MemorySource(self.log, clock=self.clock),
            batcher,
            self.case.transform or (lambda message: message.record),
            name="billing",
            poison=Poison(self.strategy, dead_letters=self.letters, parked=self.store),
            retry=RetryPolicy(attempts=3),
            drain=0.0 if self.case.is_cut else 5.0,
        )

    async def told(self) -> Told:
        """Run the case and return the observations."""
        pipe = self.pipe()
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(pipe.run())
            await self.clock.advance(0.3 if self.case.is_cut else WATCHED)
            blocked = 0 in [each.offset for each in pipe.blocked]
            passes = self.log.start(P0).offset > 0
            pipe.stop()
        self._check(run.result())
        later, parked = LATER in self.sink.applied, await self._parked()
        again = self.sink.tries > 1 and 0 in self.sink.applied
        counts = run.result().source.counts
        fate = {
            "given up, and logged": counts.terminated > 0,
            "to the dead letters": self.letters is not None and bool(self.letters.items),
            "to the park store": 0 in parked,
            "is blocked" if later else "blocks its key": blocked,
            "acknowledged, and counted as `skipped`": counts.skipped > 0,
            "sent again, in front of its key's later rows": again,
        }
        record = [text for text, happened in fate.items() if happened]
        if not record and passes:
            record = ["acknowledged"]
        elif not record:
            await self._next_owner()
            record = ["delivered again, to the next owner"]
        position = "passes it" if passes else "stays before it"
        return Told(
            ", and ".join(record),
            f"then {position}" if again else position,
            self._later(written=later, parked=LATER in parked, again=again),
        )

    def _check(self, report: PipeReport) -> None:
        """Check that the case matches its title and that nothing overtook a row in doubt."""
        ended = report.batcher.tally
        if self.case.outcome is None:
            assert self.sink.tries == 0
        else:
            assert getattr(ended, self.case.outcome.value) > 0
        assert not self.sink.passed_early

    async def _next_owner(self) -> None:
        """Check that another pipe receives the record and its followers in order."""
        self.sink.answers = (Outcome.DELIVERED,)
        self.case = Case("", self.sink.answers)
        async with asyncio.TaskGroup() as tasks:
            pipe = self.pipe()
            tasks.create_task(pipe.run())
            await self.clock.advance(WATCHED)
            pipe.stop()
        assert [each for each in self.sink.applied if each in {0, LATER}] == [0, LATER]

    @staticmethod
    def _later(*, written: bool, parked: bool, again: bool) -> str:
        if written:
            return "wait, and are then written" if again else "are written"
        return "to the park store" if parked else "wait"

    async def _parked(self) -> list[int]:
        if self.store is None:
            return []
        keys = await self.store.keys("billing")
        return [each.offset for key in keys for each in await self.store.first("billing", key, 9)]


def with_reports(case: Case, strategy: PoisonStrategy, *, letters: bool) -> Told:
    """The observed cells of one run."""
    with FakeClock() as clock:
        return clock.run(Run(case, clock, strategy, letters=letters).told())


def _lines(case: Case) -> tuple[str, ...]:
    """The lines of a case, without its title."""
    seen = {(name, has): with_reports(case, name, letters=has) for name, has in OPTIONS}
    if len({*seen.values()}) == 1:
        return (_line("any", "any", next(iter(seen.values()))),)
    lines: list[str] = []
    for (name, has), told in seen.items():
        makes_none = seen.get((name, not has)) == told
        if not makes_none:
            lines.append(_line(f'`"{name}"`', "yes" if has else "no", told))
        elif has:
            lines.append(_line(f'`"{name}"`', "any", told))
    return tuple(lines)


def _line(strategy: str, letters: str, told: Told) -> str:
    return f"{strategy} | {letters} | {' | '.join(told)} |"


def table() -> str:
    """The whole table."""
    titles: dict[tuple[str, ...], list[str]] = {}
    for case in CASES:
        titles.setdefault(_lines(case), []).append(case.title)
    lines = [
        f"| {'' if number else '; '.join(cases) + ' '}| {line}\n"
        for group, cases in titles.items()
        for number, line in enumerate(group)
    ]
    return HEAD + "".join(lines)


def on_the_page() -> str:
    """The table as it is on the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    begin = lines.index(HEAD.splitlines(keepends=True)[0])
    return "".join(itertools.takewhile(lambda line: line.startswith("|"), lines[begin:]))


if __name__ == "__main__":
    logging.disable()
    made = table()
    if sys.argv[1:] == ["write"]:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(text.replace(on_the_page(), made), encoding="utf-8")
    else:
        sys.stdout.write(made)
