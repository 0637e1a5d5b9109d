"""Planted bugs of jobs: each is a small change of one method, with the law that detects it.

White box: the bugs are planted in private code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.machine.consumer_mutants import Planted

from sluicegate import ClosedError, Message
from sluicegate._core.order.lanes import Lanes
from sluicegate.consumer.jobs import BatchItem, BatchItems, JobScheduler
from sluicegate.consumer.jobs.events import Events
from sluicegate.consumer.jobs.items import ItemFormer
from sluicegate.consumer.jobs.job_run import JobQueue, JobRun
from sluicegate.consumer.lanes.held import CompletedJobs
from sluicegate.consumer.lanes.schedule import Schedule
from sluicegate.consumer.progress.draining import Drainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    from tests.machine.consumer_mutants import Mutant

    from sluicegate.consumer.jobs import EventContext
    from sluicegate.consumer.jobs.job_run import Job

ALL: dict[str, Planted] = {}
ORDER = "out of order|.*overtook"
END = "the end was not reached|left inside"


def mutant(law: str, **where: Any) -> Callable[[Mutant], Mutant]:
    """Register a mutant with the start of the expected complaints and the settings in which it
    shows.
    """

    def note(plant: Mutant) -> Mutant:
        ALL[plant.__name__] = Planted(plant, law, where)
        return plant

    return note


@mutant(ORDER, ordering="partition")
def the_last_job_is_finalised_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A completed event enters the queue in front of earlier ones."""

    def put_ahead(self: Lanes[Message], entry: Message) -> None:
        self.put_back(entry.lane_key, [entry])

    monkeypatch.setattr(Lanes, "put_ahead", put_ahead)


@mutant("what waits to be finalised has left", ordering="partition", every=None)
def finalisers_leave_at_once_in_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that await their finaliser are dropped when their claim begins to close."""
    real = Drainer.drop

    def drop(
        self: Drainer, claims: Any, *, keep_batch: bool = False, keep_jobs: bool = False
    ) -> None:
        del keep_jobs
        real(self, claims, keep_batch=keep_batch)

    monkeypatch.setattr(Drainer, "drop", drop)


@mutant(END, first=(1, 1, 1))
def a_held_lane_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that gets capacity does not release its lane."""
    monkeypatch.setattr(Events, "let_continue", lambda self, message: None)


@mutant("no room for", ordering="partition", first=(1, 1, 1), second=(1, 1, 1))
def one_of_two_holds_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event that gets capacity releases the lane although others still wait for
    capacity.
    """

    def has_room(self: Events, message: Message) -> None:
        lanes, key = message.claim.lanes, message.lane_key
        holding = self._without_room.get((id(lanes), key), set())
        holding.discard(message)
        if not holding:
            self._without_room.pop((id(lanes), key), None)
        following = lanes.let_go(key)
        if following is not None:
            self.schedule.ready.append(following)
        self.workers.wake()

    monkeypatch.setattr(Events, "let_continue", has_room)


@mutant("after its claim: finaliser|a consumer failed|.*completed after its claim")
def a_finaliser_runs_for_a_claim_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished job completes its event even if the claim has ended."""

    def job_complete(self: Events, context: EventContext, finalise: Any) -> bool:
        message = context.message
        if context.turn.is_out:
            self._come_in(context, finalise)
            return True
        if message in self.workers.running and message not in self._early:
            self._early[message] = finalise
            return True
        return False

    monkeypatch.setattr(Events, "job_complete", job_complete)


@mutant("a key in two processors|out of order")
def a_key_is_free_before_its_processor_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job of a key begins while the previous one runs."""
    real, done = JobRun._processed, JobQueue.done

    async def processed(self: JobRun, job: Job) -> BaseException | None:
        self._admitted(done(self.queue, job))
        self.wake()
        return await real(self, job)

    monkeypatch.setattr(JobRun, "_processed", processed)
    monkeypatch.setattr(JobQueue, "done", lambda self, job: [])


@mutant("a key in two batches|out of order", batch=(2, 2, 2))
def a_batch_does_not_keep_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a running batch may be in the next batch."""
    real, ended = ItemFormer.take, ItemFormer.done

    def take(self: ItemFormer) -> list[BatchItem]:
        batch = real(self)
        ended(self, batch)
        return batch

    def done(self: ItemFormer, batch: Sequence[BatchItem]) -> None:
        """Ignore the end of the batch."""

    monkeypatch.setattr(ItemFormer, "take", take)
    monkeypatch.setattr(ItemFormer, "done", done)


@mutant("complete without its job")
def a_scheduler_without_a_run_says_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """`schedule` returns a result that completes the event."""
    real = JobScheduler.schedule

    def schedule(self: JobScheduler[Any, Any], *given: Any) -> Any:
        try:
            return real(self, *given)
        except ClosedError:
            return None

    monkeypatch.setattr(JobScheduler, "schedule", schedule)


@mutant("side by side|a consumer failed", ordering="partition", every=0.3, concurrency=8)
def an_interjection_takes_the_lane_of_a_running_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready at once."""

    real = CompletedJobs.come_in

    def come_in(self: CompletedJobs, context: EventContext) -> bool:
        message = context.message
        if message.index >= 0:
            return real(self, context)
        context.turn.come_in()
        message.claim.lanes.active.add(message.lane_key)
        self._ready.append(message)
        return True

    monkeypatch.setattr(CompletedJobs, "come_in", come_in)


@mutant("processed twice|called twice|out of order", attempts=4)
def a_failed_finaliser_repeats_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt of an event begins with its handler."""
    real = Message.begin_again

    def begin_again(self: Message) -> None:
        real(self)
        self.finish_by(None)

    monkeypatch.setattr(Message, "begin_again", begin_again)


@mutant(f"places do not add up|{END}|a consumer failed", ordering="partition")
def finalisers_outlive_their_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that await their finaliser only leave their lane."""
    monkeypatch.setattr(CompletedJobs, "forget", lambda self, gone: None)


@mutant("called before its items|called twice|after its claim|a consumer failed|places")
def a_callback_runs_with_the_first_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group counts as executed after its first item."""

    def executed(self: BatchItems) -> bool:
        self.left -= 1
        return True

    monkeypatch.setattr(BatchItems, "end_item", executed)


@mutant(END)
def an_early_completion_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event completed before its handler ended waits forever."""
    real = Events.step_out

    def step_out(self: Events, message: Message, result: Any) -> None:
        self._early.pop(message, None)
        real(self, message, result)

    monkeypatch.setattr(Events, "step_out", step_out)


@mutant("after its claim: batch", delay=0.4, batch=(3, 1, 2))
def items_of_ended_claims_are_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is not checked before a batch."""

    monkeypatch.setattr(BatchItem, "is_left", property(lambda self: False))


@mutant("committed past|the end was not reached|not committed|counted")
def an_incomplete_event_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position passes the event while its job is unfinished."""
    real = Events.step_out

    def step_out(self: Events, message: Message, result: Any) -> None:
        if message.index >= 0:
            message.claim.settle(message.index)
        real(self, message, result)

    monkeypatch.setattr(Events, "step_out", step_out)


@mutant(f"places do not add up|{END}|a consumer failed")
def an_event_that_is_left_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished event does not free its place in the window when its claim ends."""
    real = Schedule.finish

    def finish(self: Schedule, message: Message) -> None:
        context = self.completed.contexts.get(message)
        if context is None or not context.turn.leave():
            real(self, message)
        else:
            del self.completed.contexts[message]

    monkeypatch.setattr(Schedule, "finish", finish)
