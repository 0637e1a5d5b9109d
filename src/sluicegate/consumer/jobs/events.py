"""Events that may be completed later: the work of `Consumer.run_events`.

1. An event runs in the order of its partition (or of its key): first its handler, then, after its
   jobs, its finalisers. They never run concurrently. An event whose last job has no finaliser is
   complete with its job, without another turn.
2. An event whose handler returns `Incomplete` ends its turn. It stays pending, and the position
   does not pass it, until a finaliser returns a result that completes it.
3. A job without room holds the lane of its event: no later event begins, but finalisers do.
4. An event that fails in a finaliser is retried from that finaliser. Events handled behind it
   meanwhile came after its handler, and are not repeated.
5. When a claim ends, its incomplete events are left to the next owner, and their finalisers do not
   run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ..._core.errors import ConfigError, StoppedError
from ..._core.logs import for_log, log_safely
from ..handling.handlers import with_reports
from ..handling.results import Ack, Incomplete, Nak, PoisonError, Terminate
from ..handling.steps import with_steps
from ..handling.workers import SingleMessages
from .context import EventContext, ForwardsInTurn, Pending, complete
from .interjections import Interjection, InterjectionCount, NotAssigned
from .state import Crowded, in_turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence

    from ..engine import Engine
    from ..handling.steps import Step
    from ..lanes.message import Message
    from ..progress.claim import Claim
    from .context import Finalise, Forwarding
    from .state import Stores, TurnStore


logger = logging.getLogger("sluicegate.consumer")

_INTERJECTION_FAILED = "%s: an interjection in %s failed (%s)"
_GIVEN_UP = "%s was revoked meanwhile"


class SkippedSchedulerError(PoisonError):
    """An event was completed without the scheduler of its key, and would overtake earlier events of
    that key.
    """


class KeepsKeys(Protocol):
    """An object that orders jobs by keys."""

    @property
    def debug(self) -> bool:
        """Whether events that bypass it are refused."""
        ...

    def has_key(self, key: Hashable) -> bool:
        """Return whether a job or an item of this key is pending."""
        ...


class WaitsForItems(Protocol):
    """The run of an item batcher."""

    def hurry(self) -> None:
        """Stop waiting for more items."""


class Events(SingleMessages):
    """Work that handles one event at a time per lane, and completes events."""

    def __init__(
        self,
        engine: Engine,
        handler: Callable[[EventContext], Awaitable[object]],
        steps: Sequence[Step],
        jobs: Sequence[KeepsKeys],
        stores: Stores,
        *,
        forwarding: Forwarding | None,
    ) -> None:
        turn = self._stored_turn if stores.are_any else self._turn
        call = with_reports(turn, engine)
        super().__init__(engine.schedule, engine.settler, engine.workers, engine, call)
        self._handler = handler
        self._stepped = with_steps(self._begin_event, *steps) if steps else None
        self._jobs = tuple(jobs)
        self.stores = stores
        self._runs: tuple[WaitsForItems, ...] = ()
        self._without_room: dict[tuple[int, object], set[Message | Crowded]] = {}
        """The reasons to hold each lane: events without room for their jobs, or too many
        changes.
        """
        self._forwarding = forwarding
        self._needs_turns = stores.are_any or forwarding is not None or call is not turn
        """Whether a turn without a finaliser has an effect, or is observed."""
        self.crowded = Crowded()
        self.interjections = InterjectionCount()
        self.failed = engine.end
        """Ends the run with an error."""
        self._contexts = engine.schedule.completed.contexts
        self._early: dict[Message, Finalise] = {}
        engine.settler.with_jobs(self)

    # -- turns -------------------------------------------------------------------------------------

    async def _stored_turn(self, message: Message) -> object:
        if message.finalise is not None:
            self._contexts[message].turn.begin()
        store = await self.stores.prepare(message.claim)
        if store is None:
            return await self._turn(message)
        offset = None if isinstance(message, Interjection) else message.offset
        result = await in_turn(store, offset, self._turn(message))
        if store.is_crowded and not message.claim.is_closing:
            self._hold(message, store)
        return result

    async def _turn(self, message: Message) -> object:
        finalise = message.finalise
        context: EventContext | None
        try:
            if finalise is not None:
                context = self._contexts[message]
                context.turn.begin()
                result = await finalise(context)
            elif self._stepped is None:
                context = self._contexts[message] = EventContext(message, self)
                result = await self._handler(context)
            else:
                result = await self._stepped(message)
                context = self._contexts.get(message)  # none if a step has refused the message
        except BaseException:
            if (context := self._contexts.get(message)) is not None:
                context.turn.fail()
            raise
        if context is not None:
            context.turn.end(result)
            if self._forwarding is not None:
                result = await self._forwarding.after(context, result)
        if isinstance(result, Incomplete):
            return result
        checked = self._check_order(message, result) if finalise is None and self._jobs else result
        if result is None or isinstance(result, Ack):
            self._forget(message)
            if finalise is not None:
                message.finish_by(None)
        if isinstance(message, Interjection):
            message.check_result(result)
            message.complete()
            return None
        return checked

    async def _begin_event(self, message: Message) -> object:
        context = self._contexts[message] = EventContext(message, self)
        return await self._handler(context)

    def _check_order(self, message: Message, result: object) -> object:
        """Return the result of an event, unless it would overtake earlier ones of its key in a
        scheduler.
        """
        for each in self._jobs:
            if each.debug and each.has_key(message.key):
                told = f"{message.coordinates} is complete while earlier events of its key are in {each!r}"
                return Terminate(error=SkippedSchedulerError(told))
        return result

    # -- forwarded items ---------------------------------------------------------------------------

    def forward(self, context: EventContext, item: object) -> None:
        """See `EventContext.forward`."""
        if self._forwarding is not None:
            context.turn.forward(item)
            return
        store = self.stores.of(context.partition) if self.stores.are_any else None
        if not isinstance(store, ForwardsInTurn):
            rule = "forward() needs run_events(forward_to=batcher), or a KafkaState"
            raise ConfigError(rule)
        store.forward(item)

    # -- interjections -----------------------------------------------------------------------------

    def interject(
        self, message: Interjection, call: Callable[[EventContext], Awaitable[object]]
    ) -> None:
        """Put an interjection at the front of its lane."""
        context = self._contexts[message] = EventContext(message, self)
        self.interjections.begin(message.done)
        message.finish_by(call)
        self.schedule.window.take(1, 0)
        self.schedule.completed.come_in(context)
        self.workers.wake()

    def result_of(self, message: Message, result: object) -> object:
        """Return the result to carry out. An interjection is neither retried nor poison; its error
        is reported here.
        """
        if isinstance(result, Incomplete):
            return result
        self._early.pop(message, None)
        if not isinstance(message, Interjection):
            return result
        error = result.error if isinstance(result, Nak) else None
        if isinstance(error, StoppedError) and message.claim.is_closing:
            error = NotAssigned(_GIVEN_UP % (message.claim.partition,))
        elif error is not None:
            where, told = message.claim.partition, for_log(error)
            log_safely(logger, logging.ERROR, _INTERJECTION_FAILED, self.run.name, where, told)
        message.complete(error)
        return None

    @property
    def reads_state(self) -> bool:
        """Whether the state of a claim is read before anything is fetched for it."""
        return self.stores.are_positioned

    def reading_progress(self, claim: Claim) -> str:
        """Return the progress of reading the state, for operators."""
        return self.stores.progress_of(claim)

    # -- incomplete events -------------------------------------------------------------------------

    def step_out(self, message: Message, result: Incomplete) -> None:
        """End the turn of an event whose handler or finaliser returned `Incomplete`."""
        context = self._contexts[message]
        if message.finalise is not None:
            message.finish_by(None)
        if isinstance(result, Pending):
            context.turn.step_out(result)
            if not result.submit():
                self._hold_for(message, message)
        else:
            context.turn.step_out(None)
        self.schedule.end_turn(message)
        if self._early and (finalise := self._early.pop(message, None)) is not None:
            self._come_in(context, finalise)

    def let_continue(self, message: Message) -> None:
        """Continue the lane of an event whose job no longer waits for room."""
        self._let_go_of(message, message)

    def _hold(self, message: Message, store: TurnStore) -> None:
        """Hold the lane of an event until the changes of its partition are stored."""
        if self.crowded.hold(message, store):
            self._hold_for(message, self.crowded)

    def continue_stored(self, message: Message) -> None:
        """Continue the lane of an event whose partition's changes are stored."""
        self._let_go_of(message, self.crowded)

    def _hold_for(self, message: Message, cause: Message | Crowded) -> None:
        lanes, key = message.claim.lanes, message.lane_key
        self._without_room.setdefault((id(lanes), key), set()).add(cause)
        lanes.hold(key)

    def _let_go_of(self, message: Message, cause: Message | Crowded) -> None:
        lanes, key = message.claim.lanes, message.lane_key
        holding = self._without_room[id(lanes), key]
        holding.remove(cause)
        if holding:
            return
        del self._without_room[id(lanes), key]
        following = None if self.schedule.parked.has(lanes, key) else lanes.let_go(key)
        if following is not None:
            self.schedule.ready.append(following)
        self.workers.wake()

    def has_no_room(self, message: Message) -> bool:
        """Return whether an event waits for room for its job."""
        lane = id(message.claim.lanes), message.lane_key
        return message in self._without_room.get(lane, ())

    def job_of(self, message: Message) -> str:
        """Return the place of an event's job, for operators; empty for a job of the application
        itself.
        """
        context = self._contexts.get(message)
        return "" if context is None or context.turn.job is None else str(context.turn.job)

    def job_complete(self, context: EventContext, finalise: Finalise) -> bool:
        """See `EventContext.job_complete`."""
        message = context.message
        if context.turn.is_out:
            if message.claim.is_closed:  # it is left to the next owner of its partition
                self.settler.leave(message)
                self.forget([message])
                return False
            self._come_in(context, finalise)
            return True
        if self._contexts.get(message) is not context:
            return False  # of a failed try, or already complete
        if message.claim.is_closed or message in self._early:
            return False
        if message in self.workers.running:
            self._early[message] = finalise
            return True
        return False

    def complete(self, context: EventContext) -> None:
        """Complete an event whose job has ended and has no finaliser. It needs no turn, unless its
        end has other effects.
        """
        message, run = context.message, self.run
        is_record = message.index >= 0 and not message.claim.is_closed
        if self._needs_turns or not is_record or not context.turn.leave():
            self.job_complete(context, complete)
            return
        self._forget(message)
        self.settler.settle_first(message, None)
        run.settled.fire()
        if run.room.waiters and self.schedule.window.has_resumed:
            run.room.fire()

    def _come_in(self, context: EventContext, finalise: Finalise) -> None:
        context.message.finish_by(finalise)
        if self.schedule.completed.come_in(context):
            self.workers.wake()

    def _forget(self, message: Message) -> None:
        """Forget an event that is complete."""
        self._contexts.pop(message, None)
        if self._early:
            self._early.pop(message, None)

    def begin(self, runs: Sequence[WaitsForItems]) -> None:
        """Set the runs of the item batchers."""
        self._runs = tuple(runs)

    def hurry(self, until: float) -> None:
        """Stop waiting for more items, since the consumer drains."""
        del until
        for run in self._runs:
            run.hurry()

    def forget(self, messages: Collection[Message]) -> None:
        """Stop the jobs of events that are left with their claims."""
        for message in messages:
            self._early.pop(message, None)
            if (context := self._contexts.get(message)) is not None:
                context.turn.withdraw()
            if isinstance(message, Interjection):
                message.complete(NotAssigned(_GIVEN_UP % (message.claim.partition,)))
