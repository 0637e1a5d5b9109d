"""Observers of a consumer: their calls, their cost, and their isolation.

White box: a handler that reports, without a consumer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, Poisoned, Recorder, finite, log_of, records, running
from consuming import PROMPT

from sluicegate import ConfigError, Consumer, Nak, Observer, Terminate, ToDeadLetter
from sluicegate._core.observer import HandlerEnd
from sluicegate.consumer import ConsumerObserver, Manual, MemoryLog, MemorySource, Poison, Skip
from sluicegate.consumer.handling.handlers import with_reports
from sluicegate.consumer.operating.health import Lag
from sluicegate.consumer.run import Run
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sluicegate import Message
    from sluicegate.consumer import SourceClaim, TopicPartition
    from sluicegate.testing import FakeClock


class Events(ConsumerObserver):
    """Records every call that is not per message."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.claims: list[tuple[str, list[TopicPartition]]] = []
        self.commits: list[tuple[dict[TopicPartition, int], str]] = []
        self.poison: list[tuple[int, str, str]] = []
        self.names: set[str] = set()
        self.stats: Callable[[], Any] | None = None

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        self.names.add(name)
        self.stats = stats

    def on_state(self, name: str, state: str) -> None:
        self.names.add(name)
        self.states.append(state)

    def on_claims(self, name: str, change: str, partitions: Sequence[TopicPartition]) -> None:
        self.claims.append((change, list(partitions)))

    def on_committed(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        error: BaseException | None,
    ) -> None:
        self.commits.append((dict(offsets), type(error).__name__))

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        self.poison.append((message.offset, str(error), action))


class Turns(ConsumerObserver):
    """Records every turn of a handler."""

    def __init__(self, told: list[tuple[str, object]] | None = None, name: str = "turns") -> None:
        self._name = name
        self.told = [] if told is None else told
        self.asked = 0

    def handling(
        self, name: str, *, is_batch: bool
    ) -> Callable[[Sequence[Any]], Callable[[HandlerEnd], None]]:
        self.asked += 1
        return self._begin

    def _begin(self, messages: Sequence[Any]) -> Callable[[HandlerEnd], None]:
        self.told.append((self._name, [message.offset for message in messages]))
        return lambda end: self.told.append((self._name, end))


class Raises(ConsumerObserver):
    """Raises in every call."""

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        raise RuntimeError("open")

    def on_state(self, name: str, state: str) -> None:
        raise RuntimeError(state)

    def on_claims(self, name: str, change: str, partitions: Sequence[TopicPartition]) -> None:
        raise RuntimeError(change)

    def on_committed(
        self, name: str, offsets: Mapping[TopicPartition, int], error: BaseException | None
    ) -> None:
        raise RuntimeError("committed")

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        raise RuntimeError(action)

    def handling(
        self, name: str, *, is_batch: bool
    ) -> Callable[[Sequence[Any]], Callable[[HandlerEnd], None]]:
        def begin(messages: Sequence[Any]) -> Callable[[HandlerEnd], None]:
            if messages[0].offset % 2:
                raise RuntimeError("begin")
            return end

        def end(told: HandlerEnd) -> None:
            raise RuntimeError("end")

        return begin


async def test_an_observer_hears_of_states_claims_commits_and_poison(fake_clock: FakeClock) -> None:
    """consumer/O32."""
    seen = Events()
    options: dict[str, Any] = {"poison": "skip", "name": "billing", "observers": [seen]}
    async with running(log_of(*"abc"), fake_clock, Poisoned(1), **options) as consumer:
        assert seen.states == ["opening", "ready"]
        assert seen.stats is not None
        assert seen.stats().counts == consumer.stats().counts
    assert seen.states == ["opening", "ready", "draining", "closed"]
    assert seen.claims == [("assigned", [P0])]
    assert seen.commits == [({P0: 3}, "NoneType")]
    assert seen.poison == [(1, "bad 1", "skip")]
    assert seen.names == {"billing"}


async def test_a_revoke_and_a_loss_are_told_apart(fake_clock: FakeClock) -> None:
    seen = Events()
    log = MemoryLog([*records("a"), *records("b", partition=1)])
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, observers=[seen])
    async with consumer:
        await source.revoke([P0])
        source.lose([P1])
    assert seen.claims == [("assigned", [P0, P1]), ("revoked", [P0]), ("lost", [P1])]


async def test_a_failed_commit_is_told_with_its_error(fake_clock: FakeClock) -> None:
    seen = Events()
    source = MemorySource(log_of("a"), clock=fake_clock, ends=True)
    source.script_commit(OSError("away"))
    await Consumer(source, clock=fake_clock, observers=[seen]).run(Recorder())
    assert ({P0: 1}, "OSError") in seen.commits


async def test_a_dead_letter_that_a_handler_asks_for_is_told(fake_clock: FakeClock) -> None:
    seen = Events()

    async def handler(message: Message) -> object:
        return ToDeadLetter("old")

    consumer = finite(
        log_of("a"), fake_clock, poison=Poison(dead_letters=MemorySink()), observers=[seen]
    )
    await consumer.run(handler)
    assert seen.poison == [(0, "old", "dead_letter")]


async def test_a_stall_and_its_end_are_told(fake_clock: FakeClock) -> None:
    seen = Events()
    options: dict[str, Any] = {"poison": "block", "stall_after": 60.0, "observers": [seen]}
    async with running(log_of("a"), fake_clock, Poisoned(0), **options) as consumer:
        await fake_clock.advance(70.0)
        assert seen.states[-1] == "stalled"
        consumer.unblock("a", action="skip")
        await fake_clock.advance(2.0)
        assert seen.states[-1] == "moving"


async def test_a_source_in_trouble_is_not_ready(fake_clock: FakeClock) -> None:
    seen = Events()
    source = MemorySource(log_of("a"), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, observers=[seen])
    async with consumer, asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run(Recorder()))
        await fake_clock.advance(1.0)
        source.report("no broker")
        await fake_clock.advance(1.0)
        source.report(None)
        await fake_clock.advance(1.0)
        consumer.stop()
    assert seen.states == ["opening", "ready", "not_ready", "ready", "draining", "closed"]


async def test_a_consumer_that_never_ran_is_closed_too(fake_clock: FakeClock) -> None:
    seen = Events()
    async with Consumer(MemorySource(log_of("a")), clock=fake_clock, observers=[seen]):
        pass
    assert seen.states == ["opening", "closed"]
    assert seen.stats is not None
    assert seen.stats().state == "closed"


# -- turns of handlers -----------------------------------------------------------------------------


async def test_without_observers_the_handler_is_called_as_it_is(fake_clock: FakeClock) -> None:
    """consumer/O32: no cost per message while observers are off."""
    handler = Recorder()
    for observers in ([], [Events()]):
        assert with_reports(handler, Run("c", fake_clock, observers)) is handler
    assert with_reports(handler, Run("c", fake_clock, [Turns()])) is not handler


async def test_an_observer_is_called_as_often_for_many_messages_as_for_one(
    fake_clock: FakeClock,
) -> None:
    """consumer/O32: no call is made per message unless an observer requests it."""
    calls: list[int] = []
    for messages in (1, 500):
        counting = Events()
        log = log_of(*range(messages))
        await finite(log, fake_clock, observers=[counting]).run(Recorder())
        calls.append(len(counting.states) + len(counting.claims) + len(counting.commits))
        assert counting.poison == []
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    ("result", "outcome", "error"),
    [
        (None, "ack", None),
        (Skip(), "skip", None),
        (Nak(error=KeyError("a")), "nak", KeyError),
        (Terminate("no"), "terminate", Exception),
        (ToDeadLetter("no"), "dead_letter", Exception),
        ("nonsense", "invalid", None),
        (OSError("away"), "error", OSError),
    ],
    ids=str,
)
async def test_a_turn_is_told_with_its_outcome_and_its_seconds(
    fake_clock: FakeClock, result: object, outcome: str, error: type[Exception] | None
) -> None:
    turns = Turns()

    async def handler(message: Message) -> object:
        await fake_clock.sleep(0.25)
        if isinstance(result, Exception):
            raise result
        return result

    options: dict[str, Any] = {"poison": "skip", "retry": PROMPT, "observers": [turns]}
    await finite(log_of("a"), fake_clock, **options).run(handler)
    assert turns.asked == 1
    assert turns.told[0] == ("turns", [0])
    end = turns.told[1][1]
    assert isinstance(end, HandlerEnd)
    assert (end.outcome, end.seconds) == (outcome, 0.25)
    assert isinstance(end.error, error) if error else end.error is None


async def test_a_manual_settle_ends_the_turn_of_its_handler(fake_clock: FakeClock) -> None:
    turns = Turns()

    async def handler(message: Message) -> object:
        return Manual()

    async with running(log_of("a"), fake_clock, handler, drain=0.1, observers=[turns]):
        pass
    assert turns.told[1] == ("turns", HandlerEnd("manual", None, 0.0))


async def test_the_turn_of_a_batch_is_told_once(fake_clock: FakeClock) -> None:
    """The turn of a batch counts as mixed unless all its messages are acknowledged."""
    turns = Turns()

    async def handler(batch: list[Message]) -> object:
        return [None, Terminate("no"), None] if len(batch) == 3 else None

    options: dict[str, Any] = {"poison": "skip", "observers": [turns]}
    await finite(log_of("a", "b", "c", "d"), fake_clock, **options).run_batch(handler, size=3)
    (_, first), (_, end), (_, second), (_, last) = turns.told
    assert (first, second) == ([0, 1, 2], [3])
    assert isinstance(end, HandlerEnd)
    assert (end.outcome, str(end.error)) == ("mixed", "no")
    assert last == HandlerEnd("ack", None, 0.0)


async def test_watches_of_a_turn_end_in_the_reverse_order(fake_clock: FakeClock) -> None:
    told: list[tuple[str, object]] = []
    observers = [Turns(told, "outer"), Turns(told, "inner")]
    await finite(log_of("a"), fake_clock, observers=observers).run(Recorder())
    assert [name for name, _ in told] == ["outer", "inner", "inner", "outer"]


async def test_an_observer_that_raises_is_logged_once_and_hurts_nothing(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Every message is handled once, and the other observer receives every call."""
    seen, handler = Events(), Poisoned(2)
    options: dict[str, Any] = {"poison": "skip", "observers": [Raises(), seen]}
    report = await finite(log_of(*"abcd"), fake_clock, **options).run(handler)
    assert handler.offsets == [0, 1, 2, 3]
    assert (report.counts.acked, report.counts.terminated) == (3, 1)
    assert seen.states[0] == "opening"
    assert seen.states[-1] == "closed"
    lines = [each for each in caplog.records if each.name == "sluicegate.observer"]
    assert [line.levelno for line in lines] == [logging.ERROR]


# -- lag -------------------------------------------------------------------------------------------


class WantsLag(ConsumerObserver):
    """Requests the lag at an interval."""

    def __init__(self, every: float | None) -> None:
        self.lag_every = every


async def test_the_lag_is_sampled_while_an_observer_wants_it(fake_clock: FakeClock) -> None:
    """consumer/O32: the gauge of the lag."""
    log = log_of("a", "b", "c")
    options: dict[str, Any] = {"poison": "block", "observers": [WantsLag(60.0), WantsLag(5.0)]}
    async with running(log, fake_clock, Poisoned(1), **options) as consumer:
        await fake_clock.advance(5.0)
        assert consumer.stats().lags == {P0: Lag(2, None)}
        assert consumer.stats().partitions[P0].stood == pytest.approx(6.0, abs=1.1)
        consumer.unblock("b", action="skip")
        await fake_clock.advance(5.0)
        assert consumer.stats().lags == {P0: Lag(0, 0.0)}
        assert consumer.stats().partitions[P0].stood is None
    assert consumer.stats().lags == {}


async def test_a_lag_that_cannot_be_sampled_is_unknown(fake_clock: FakeClock) -> None:
    """An old value would look current."""

    class Fails(MemorySource):
        is_away = False

        async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
            if self.is_away:
                raise OSError("no broker")
            return await super().ends(claims)

    source = Fails(log_of("a"), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, observers=[WantsLag(5.0)])
    async with consumer, asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run(Recorder()))
        await fake_clock.advance(6.0)
        assert consumer.stats().lags == {P0: Lag(0, 0.0)}
        source.is_away = True
        await fake_clock.advance(5.0)
        assert consumer.stats().lags == {}
        source.is_away = False
        await fake_clock.advance(5.0)
        assert consumer.stats().lags == {P0: Lag(0, 0.0)}
        consumer.stop()


async def test_without_such_an_observer_the_source_is_not_asked(fake_clock: FakeClock) -> None:
    options: dict[str, Any] = {"poison": "block", "observers": [Events()]}
    async with running(log_of("a", "b"), fake_clock, Poisoned(0), **options) as consumer:
        await fake_clock.advance(100.0)
        assert consumer.stats().lags == {}


# -- construction ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observers", "rule"),
    [
        (ConsumerObserver(), r"must be a list of observers: observers=\[observer\]"),
        ("prometheus", "must be a list of observers"),
        ([ConsumerObserver], r"observers\[0\]=.* must be an instance of a ConsumerObserver"),
        ([Observer()], "must be an instance of a ConsumerObserver"),
        ([ConsumerObserver(), 3], r"observers\[1\]=3: must be an instance"),
        ([WantsLag(-1.0)], r"observers\[0\].lag_every=-1.0"),
    ],
    ids=["one", "text", "class", "of batchers", "number", "lag"],
)
def test_what_is_no_observer_is_refused_with_the_remedy(observers: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        Consumer(MemorySource(MemoryLog()), observers=observers)
