"""Which failed items `DeadLetter(take=)` takes: by the error, the stack inside, and the classes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import tenacity
from tests.postgres.sink.postgres_help import database, proxied, role

from sluicegate import (
    Batch,
    Batcher,
    CircuitBreaker,
    ConfigError,
    DeadLetter,
    ErrorClass,
    FanOut,
    Limits,
    PermanentError,
    RefusedError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.errors import SluicegateWarning, StoppedError
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import (
    Combine,
    DeadLetterRecord,
    Isolate,
    MemorySink,
    RateLimit,
    Router,
    Split,
)
from sluicegate.telemetry import Tracing
from sluicegate.testing import FakeClock, ScriptedSink, fail, ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Sink
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-dead-letters.md"
CLASSES = ("permanent", "exhausted", "transient", "given_up", "unknown")
BY_DEFAULT = frozenset(CLASSES) - {"unknown"}


class Deadlock(Exception):
    """An error of a database's client."""


class Failing(ScriptedSink[Any]):
    """Fails as its script says; knows the deadlocks of its client."""

    def classify(self, error: BaseException) -> ErrorClass | None:
        return ErrorClass.DEADLOCK if isinstance(error, Deadlock) else None


def raising(make: Callable[[], BaseException]) -> Any:
    """A step that raises a new error each time, as destinations do."""

    async def step(scene: object) -> None:
        raise make()

    return step


def lost() -> BaseException:
    return UnknownOutcomeError("the answer to COMMIT was lost")


FAILURES: dict[str, list[Callable[[], BaseException]]] = {
    "permanent": [lambda: PermanentError("p")],
    "transient, or a deadlock": [lambda: TransientError("t"), Deadlock],
    "an exception that no classifier knows": [KeyError],
    "unavailable, or throttled": [lambda: UnavailableError("down"), lambda: ThrottledError("429")],
    "refused as a whole (a permission, a full disk)": [
        lambda: RefusedError("no right", repair="grant it")
    ],
    "unknown: it may have been applied": [lost],
    "abandoned because the batcher stops": [lambda: StoppedError("stop")],
}
"""By the end of the last attempt, as the page calls it."""


def retry(**given: Any) -> Retry:
    return Retry(attempts=2, unlisted_attempts=2, backoff=tenacity.wait_fixed(3.0), **given)


SHAPES: dict[str, Callable[[], list[Any]]] = {
    "no `Retry`": list,
    "`Retry()`": lambda: [retry()],
    "`Retry(give_up_after=...)`": lambda: [retry(give_up_after=10.0)],
    '`Retry(on_refused="dead_letter")`': lambda: [retry(on_refused="dead_letter")],
}
"""The decorators inside, as the page calls them."""


@dataclass(frozen=True)
class Ended:
    """The end of an item after half a minute; no outcome if it still waits."""

    outcome: str
    letters: list[DeadLetterRecord[Any]]
    takers: list[str]
    """The classes of the `DeadLetter`s that took it."""


def ending(inside: Callable[[], Sink[Any]], *takes: Any) -> Ended:
    """Write an item that fails through `inside` and a `DeadLetter` for each of `takes` around it;
    `None` is the default.
    """
    stores: dict[str, MemorySink[DeadLetterRecord[Any]]] = {}
    around: list[Any] = []
    for take in takes:
        stores[str(take)] = store = MemorySink[DeadLetterRecord[Any]]()
        around.append(DeadLetter(store) if take is None else DeadLetter(store, take=take))
    with FakeClock() as clock:

        async def main() -> str:
            limits = Limits(max_items=1, max_delay=0.0)
            async with Batcher(stack(inside(), *around), limits=limits) as batcher:
                receipt = await batcher.submit("a")
                await clock.sleep(30.0)
                outcome = receipt.outcome
                (await batcher.shutdown(deadline=0.1)).verify()
            return "waits" if outcome is None else outcome.value

        outcome = clock.run(main())
    letters = [letter for store in stores.values() for letter in store.items]
    return Ended(outcome, letters, [take for take, store in stores.items() if store.items])


def cell(make: Callable[[], BaseException], shape: str) -> str:
    """The class by which the item is taken, found by a `DeadLetter` for each; or else its outcome."""

    def inside() -> Sink[Any]:
        return stack(Failing(default=raising(make)), *SHAPES[shape]())

    alone, usual = ending(inside, *((name,) for name in CLASSES)), ending(inside, None)
    takers = [name for name in CLASSES if str((name,)) in alone.takers]
    others = ending(inside, {*CLASSES}.difference(takers))
    assert len(takers) == len(alone.letters) <= 1, "the classes do not overlap"
    assert others.outcome != "dead_lettered"
    assert len(usual.letters) == len(BY_DEFAULT.intersection(takers))
    for end in (alone, usual, others):
        assert (end.outcome == "dead_lettered") == (len(end.letters) == 1)
        assert all(letter.maybe_delivered == (takers == ["unknown"]) for letter in end.letters)
        assert end.letters or end.outcome == others.outcome, "not taken, it ends as without"
    return f"`{takers[0]}`" if takers else f"no: {others.outcome}"


def table() -> str:
    """The table on the page."""
    lines = [
        "| the last attempt ended | " + " | ".join(SHAPES) + " |",
        "|---|" + "---|" * len(SHAPES),
    ]
    for name, makers in FAILURES.items():
        rows = {tuple(cell(make, shape) for shape in SHAPES) for make in makers}
        lines += ["| " + " | ".join([name, *row]) + " |" for row in rows]
    return "\n".join(lines)


def test_the_page_tells_which_items_become_dead_letters() -> None:
    """design 3.4: an outage that is not given up passes outward."""
    assert table() in PAGE.read_text()


@pytest.mark.parametrize(
    "then", [PermanentError, TransientError, KeyError, Deadlock, UnavailableError, RefusedError]
)
def test_an_item_that_an_earlier_try_may_have_applied_is_unknown(then: type[Exception]) -> None:
    """design 3.4: however its last attempt ended."""

    def inside() -> Sink[Any]:
        default = raising(lambda: then("then"))
        return stack(Failing([raising(lost)], default=default), retry(give_up_after=10.0))

    for take in (None, BY_DEFAULT):
        assert ending(inside, take) == Ended("unknown", [], [])
    end = ending(inside, {"unknown"})
    assert end.outcome == "dead_lettered"
    assert [letter.maybe_delivered for letter in end.letters] == [True]


LAYERS: dict[str, Callable[[Any], Any]] = {
    "Timeout": Timeout(25.0),
    "Isolate": Isolate(),
    "Split": Split(1),
    "RateLimit": RateLimit(1000.0),
    "CircuitBreaker": CircuitBreaker(consecutive=1000),
    "Tracing": Tracing(),
    "Combine": lambda sink: Combine(sink, key=str, merge=lambda one, two: one),
    "Router": lambda sink: Router(lambda item: "a", {"a": sink}),
    "one branch of two": lambda sink: FanOut(MemorySink(), sink),
    "the second of two": lambda sink: FanOut(sink, MemorySink(), mode="sequential"),
    "a best-effort branch beside it": lambda sink: FanOut(sink, best_effort=[MemorySink()]),
    "DeadLetter of another class": DeadLetter(MemorySink(), take={"permanent"}),
}


@pytest.mark.parametrize("between", list(LAYERS))
@pytest.mark.parametrize(
    ("kind", "name"), [(TransientError, "exhausted"), (UnavailableError, "given_up")]
)
def test_a_layer_between_the_retry_and_the_dead_letters_changes_no_class(
    between: str, kind: type[Exception], name: str
) -> None:
    def inside() -> Sink[Any]:
        layer: Any = LAYERS[between]
        sink = stack(Failing(default=raising(lambda: kind("e"))), retry(give_up_after=10.0))
        return cast("Sink[Any]", layer(sink))

    assert len(ending(inside, {name}).letters) == 1
    others = ending(inside, set(CLASSES) - {name, "permanent"})
    assert others == Ended("rejected", [], [])


async def test_every_item_of_a_batch_that_is_given_up_becomes_a_letter(
    fake_clock: FakeClock,
) -> None:
    """Also the parts that were not sent after the outage of an earlier part, and both branches."""

    def down() -> Sink[Any]:
        default = raising(lambda: UnavailableError("down"))
        return stack(Failing(default=default), retry(give_up_after=10.0))

    sinks: list[Sink[Any]] = [stack(down(), Split(1)), FanOut(down(), down())]
    for sink in sinks:
        letters: MemorySink[DeadLetterRecord[Any]] = MemorySink()
        limits = Limits(max_items=3)
        async with Batcher(stack(sink, DeadLetter(letters)), limits=limits) as batcher:
            await batcher.add_many([*"abc"])
            await batcher.flush()
        assert batcher.tally().dead_lettered == 3
        assert {letter.item for letter in letters.items} == {*"abc"}
        assert {letter.error_class for letter in letters.items} == {"unavailable"}


@pytest.mark.parametrize("inside", [[], [Retry(attempts=2, backoff=tenacity.wait_fixed(1.0))]])
async def test_an_open_circuit_that_raises_gives_up(
    fake_clock: FakeClock, inside: list[Any]
) -> None:
    """B31: the document's own stack, with a destination that never recovers. A letter of an item
    that was never sent says so.
    """
    letters: MemorySink[DeadLetterRecord[int]] = MemorySink()
    breaker = CircuitBreaker(consecutive=2, open_for=900.0, longest_open=900.0, when_open="raise")
    destination: ScriptedSink[int] = ScriptedSink(default=fail())
    sink = stack(destination, *inside, breaker, DeadLetter(letters))
    async with Batcher(sink, limits=Limits(max_items=1, max_delay=0.0)) as batcher:
        for item in range(5):
            await batcher.add(item)
            await batcher.flush()
    assert [letter.item for letter in letters.items] == [*range(5)]
    tries = len(inside) + 1
    assert [letter.attempts for letter in letters.items] == [tries, tries, 0, 0, 0]
    assert [letter.error_class for letter in letters.items][2:] == ["unavailable"] * 3
    assert len(destination.calls) == 2 * tries


@pytest.mark.filterwarnings("ignore:a DeadLetter inside a Retry")
async def test_an_outage_that_is_not_given_up_is_not_spilled(fake_clock: FakeClock) -> None:
    """Neither by a DeadLetter inside a Retry, nor in a later batch whose error is the same object as
    one that was given up.
    """
    down = UnavailableError("always the same object")
    letters: MemorySink[DeadLetterRecord[str]] = MemorySink()
    every: Any = DeadLetter(letters, take=cast("Any", CLASSES))
    inside = stack(Failing([fail(down)] * 9, default=ok()), every, retry())
    given_up = stack(Failing(default=fail(down)), retry(give_up_after=10.0), every)
    without = stack(Failing(default=fail(down)), every)
    ends: list[str] = []
    for sink in (inside, given_up, without):
        async with Batcher(sink, limits=Limits(max_items=1, max_delay=0.0)) as batcher:
            receipt = await batcher.submit("a")
            await batcher.flush()
        ends.append((await receipt.settled()).value)
    assert ends == ["delivered", "dead_lettered", "rejected"]
    assert len(letters.items) == 1


# -- a real destination ----------------------------------------------------------------------------

REAL: dict[str, tuple[str, list[Any], str, bool]] = {
    # the destination, the decorators, the class of the error, whether it may have been applied
    "a bad row": ("bad", [Retry()], "permanent", False),
    "a serialization failure": ("40001", [Retry(2, backoff=tenacity.wait_fixed(0))], "transient", False),
    "no server, given up": ("down", [Retry(give_up_after=0.1)], "unavailable", False),
    "no right, given up": ("revoked", [Retry(give_up_after=0.1)], "refused", False),
    "no right, not waited for": ("revoked", [Retry(on_refused="dead_letter")], "permanent", False),
    "a circuit that raises": (
        "down",
        [CircuitBreaker(consecutive=1, when_open="raise")],
        "unavailable",
        False,
    ),
    "no answer": ("slow", [Timeout(0.2), Retry(resend_unknown=False)], "unknown", True),
}  # fmt: skip
CHECKS = """
CREATE FUNCTION {table}_check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.word = '40001' THEN RAISE serialization_failure; END IF;
    IF NEW.word = 'slow' THEN PERFORM pg_sleep(10); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER checks BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_check()
"""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if "given up" in case else pytest.mark.long) for case in REAL],
)
async def test_letters_of_a_real_destination_are_rows_of_a_real_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, case: str
) -> None:
    word, inside, error_class, maybe = REAL[case]
    columns = ", ".join(
        f"{name} {'int' if name == 'attempts' else 'timestamptz' if name.endswith('_at') else 'bool' if name in {'maybe_delivered', 'parked_behind'} else 'text'}"
        for name in DeadLetterRecord.COLUMNS
    )
    async with (
        database(
            embedded_postgres.dsn, "id int PRIMARY KEY, word text CHECK (word <> 'bad')"
        ) as db,
        database(embedded_postgres.dsn, columns) as store,
        role(db) as writer,
        AsyncExitStack() as server,
    ):
        await db.con.execute(CHECKS.format(table=db.table))
        _, dsn = await server.enter_async_context(proxied(writer.dsn))
        target: Any = PostgresSink(
            store.dsn,
            table=store.table,
            columns=DeadLetterRecord.COLUMNS,
            row=DeadLetterRecord.as_row,
        )
        take: Any = {"permanent", "exhausted", "given_up", *(["unknown"] if maybe else [])}
        sink = stack(db.sink(dsn=dsn), *inside, DeadLetter(target, take=take))
        first = 1 if case == "a circuit that raises" else 0  # it opens the circuit, unmarked
        limits = Limits(max_items=1, max_delay=0.0)
        async with Batcher(cast("Any", sink), limits=limits) as batcher:
            if word == "revoked":
                await db.con.execute(f"REVOKE INSERT ON {db.table} FROM {writer.name}")
            if word == "down":
                await server.aclose()
            for item in range(first):
                await batcher.add((item, word))
                await batcher.flush()
            receipt = await batcher.submit((first, word))
            await batcher.flush()
        assert (await receipt.settled()).value == "dead_lettered"
        rows = await store.con.fetch(f"SELECT * FROM {store.table}")
        assert [(row["item"], row["error_class"], row["maybe_delivered"]) for row in rows] == [
            (f'[{first},"{word}"]', error_class, maybe)
        ]
        assert await db.rows() == []
        await db.con.execute(f"DROP FUNCTION {db.table}_check CASCADE")


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("take", "message"),
    [
        ("unknown", r"take='unknown': must be a list of classes, such as \('unknown',\); the classes"),
        (5, "take=5: must be a list of classes, such as "),
        ((), r"take=\(\): must name at least one class"),
        (["exhaused"], r"take=\['exhaused'\]: 'exhaused' is no class; the classes are 'permanent', "),
        ([ErrorClass.PERMANENT], "is no class; the classes are"),
        ([None], "None is no class"),
    ],
)  # fmt: skip
def test_a_bad_class_is_named_with_the_right_one(take: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DeadLetter(MemorySink(), take=take)


async def write(batch: Batch[Any]) -> None: ...


@pytest.mark.parametrize(
    ("inside", "outside"), [(None, None), (None, {"transient", "unknown"}), ({"unknown"}, CLASSES)]
)
@pytest.mark.parametrize("between", [[], [Retry(attempts=1), Timeout(5.0)]])
def test_a_class_is_taken_once(inside: Any, outside: Any, between: list[Any]) -> None:
    one, two = [
        DeadLetter(MemorySink(), **({} if take is None else {"take": take}))
        for take in (inside, outside)
    ]
    with pytest.raises(ConfigError, match=r"^take=\(.*\): .* would never arrive, since Dead"):
        stack(write, one, *between, two)
    branches = FanOut(stack(write, one), stack(MemorySink(), one))
    stack(branches, two)  # each branch is another destination


def test_letters_of_several_classes_have_a_store_each() -> None:
    one: Any = DeadLetter(MemorySink(), take=("permanent",))
    two: Any = DeadLetter(MemorySink(), take=("exhausted", "given_up"))
    sink: Any = stack(write, one, Retry(), two)  # nothing is left to warn of
    with pytest.raises(ConfigError, match=r"^on_key_failure='park': needs a single DeadLetter"):
        Batcher(sink, key=str, on_key_failure="park")
    with pytest.warns(SluicegateWarning, match="a DeadLetter inside a Retry"):
        stack(write, DeadLetter(MemorySink(), take=("transient",)), Retry())


def test_letters_do_not_go_where_their_items_failed() -> None:
    """design 3.2: one sink may be the target of another one's letters, or of items made of them."""
    destination: MemorySink[Any] = MemorySink()
    base: Any
    target: Any
    for base, target in [
        (destination, destination),
        (destination, stack(destination, Retry())),
        (write, write),
        (FanOut(destination, MemorySink()), destination),
        (destination, FanOut(destination, MemorySink())),
        (Combine(destination, key=str, merge=lambda one, two: one), destination),
    ]:
        with pytest.raises(ConfigError, match=r"^target=.*: is the sink whose failed items it"):
            stack(base, Timeout(5.0), DeadLetter(target))
        stack(base, Timeout(5.0), DeadLetter(target, record=str))
    stack(MemorySink(), DeadLetter(destination))
