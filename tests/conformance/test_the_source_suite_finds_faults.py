"""The suite detects faults: each of these sources has one, and the named test of the suite
fails.

White box: the comparison that the suite makes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.conformance.source_help import LOGS, MemorySourceSuite

from sluicegate import ConfigError
from sluicegate.consumer import (
    Fetched,
    MemoryLog,
    MemorySource,
    Position,
    Record,
    UndecodableRecord,
)
from sluicegate.testing import FakeClock
from sluicegate.testing.conformance.source.delivery import contradictions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sluicegate.consumer import ClaimHost, Source, SourceClaim, TopicPartition


class CommitsWhatItNoLongerHolds(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        await asyncio.sleep(0)
        self.log.store({claim.partition: position for claim, position in positions.items()})
        return list(positions)


class ChecksBeforeItsLastAwait(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        held = {c.partition: p for c, p in positions.items() if c in self._cursors}
        await asyncio.sleep(0)
        self.log.store(held)
        return [claim for claim in positions if claim.partition in held]


class StoresNoMap(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        return await super().commit({c: Position(p.offset) for c, p in positions.items()})


class KeepsTheOldMap(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        old = self.log.positions
        return await super().commit(
            {
                claim: Position(
                    position.offset,
                    position.metadata or old.get(claim.partition, position).metadata,
                )
                for claim, position in positions.items()
            }
        )


class ReportsSuccess(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        try:
            return await super().commit(positions)
        except Exception:
            return list(positions)


class FailsForOneLostClaim(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        if not all(claim in self._cursors for claim in positions):
            raise RuntimeError("a partition is not assigned")
        return await super().commit(positions)


class BreaksAfterACancelledCommit(MemorySource):
    is_busy = False

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        assert not self.is_busy, "a commit is in flight"
        self.is_busy = True
        stored = await super().commit(positions)
        self.is_busy = False
        return stored


class CommitsWhatItHasDelivered(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        return await super().commit(
            {claim: Position(self._cursors[claim].at) for claim in positions}
        )


class TellsNothingStored(MemorySource):
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        await super().commit(positions)
        return []


class AssignsNothing(MemorySource):
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing."""


class IgnoresMetadata(MemorySource):
    def _open_host(self) -> ClaimHost:
        host = super()._open_host()

        class Forgetful:
            def __getattr__(self, name: str) -> Any:
                return getattr(host, name)

            def assigned(self, starts: Mapping[TopicPartition, Position]) -> Any:
                return host.assigned({tp: Position(start.offset) for tp, start in starts.items()})

        return cast("ClaimHost", Forgetful())


class LosesTheFirstRecord(MemorySource):
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        super().assign(partitions)
        for cursor in self._cursors.values():
            cursor.take(1)


class Edits(MemorySource):
    """Changes the records that a fetch has delivered."""

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        fetched = await super().fetch(claims, most)
        return None if fetched is None else [self.edited(each) for each in fetched]

    def edited(self, fetched: Fetched) -> Fetched:
        return fetched


class DeliversOutOfOrder(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        return fetched._replace(records=fetched.records[::-1])


class DeliversTwice(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        return fetched._replace(records=[*fetched.records, *fetched.records[-1:]])


class TellsTooFar(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        return fetched._replace(next_offset=self.log.end(fetched.claim.partition))


class TellsNoHoles(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        return fetched._replace(next_offset=0)


class DeliversMoreThanAsked(MemorySource):
    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        return await super().fetch(claims, most + 5)


class DeliversUnaskedClaims(MemorySource):
    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        return await super().fetch(list(self._cursors), most)


class SwallowsOnCancel(MemorySource):
    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        fetched = await super().fetch(claims, most)
        await asyncio.sleep(0)
        return fetched


class SleepsThroughAppends(MemorySource):
    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        if all(cursor.is_over() for cursor in self._cursors.values()):
            await asyncio.get_running_loop().create_future()
        return await super().fetch(claims, most)


class DeliversOfLostClaims(MemorySource):
    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        lost = {c: cursor for c, cursor in self._cursors.items() if c.partition in {*partitions}}
        super().lose(partitions)
        self._cursors.update(lost)


class GoesOnWithTheOldPlace(MemorySource):
    """A returned partition continues where the last claim stopped."""

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        self.places = {claim.partition: cursor for claim, cursor in self._cursors.items()}
        super().lose(partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        super().assign(partitions)
        for claim in self._cursors:
            if claim.partition in getattr(self, "places", {}):
                self._cursors[claim] = self.places[claim.partition]


class CommitsAtALoss(MemorySource):
    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        claims = self._claims_of(partitions)
        revoked = self._open_host().revoked(claims, 0.0)
        try:
            revoked.send(None)
        except StopIteration as answer:
            self.log.store({c.partition: p for c, p in answer.value.items()})
        super().lose(partitions)


class CommitsNothingAtARevoke(MemorySource):
    async def revoke(self, partitions: Iterable[TopicPartition], within: float = 1.0) -> None:
        wanted = list(partitions)
        await self._open_host().revoked(self._claims_of(wanted), within)
        self.lose(wanted)


class RevokesWithoutWaiting(MemorySource):
    """The next owner gets the partition before the host has drained it."""

    async def give(
        self, partitions: Iterable[TopicPartition], to: MemorySource, within: float = 1.0
    ) -> None:
        moved = list(partitions)
        self.log.group.release(moved)
        to.assign(moved)
        await self.revoke(moved, within)


class EndsByPartition(MemorySource):
    """At the end of a revoke it ends all present claims of the partitions."""

    async def revoke(self, partitions: Iterable[TopicPartition], within: float = 1.0) -> None:
        wanted = list(partitions)
        await super().revoke(wanted, within)
        self.lose(wanted)


class RevokesEverything(MemorySource):
    async def give(
        self, partitions: Iterable[TopicPartition], to: MemorySource, within: float = 1.0
    ) -> None:
        moved = list(partitions)
        await self.revoke(self.claimed, within)
        to.assign(moved)


class ForgetsToEndItsClaims(MemorySource):
    def _end(self, claims: Collection[SourceClaim]) -> None:
        """Do nothing."""


class TellsTheLastOffset(MemorySource):
    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        return {claim: end - 1 for claim, end in (await super().ends(claims)).items()}


class DeclaresWhatItIsNot(MemorySource):
    capabilities = replace(MemorySource.capabilities, takes_back=True)


class KnowsOneEndOnly(MemorySource):
    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        return dict([*(await super().ends(claims)).items()][:1])


class RedeliversWhenKeptAlive(MemorySource):
    async def keep_alive(self) -> None:
        self.redeliver(self.claimed[0])


class RaisesForAnUndecodableRecord(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        for record in fetched.records:
            if isinstance(record, UndecodableRecord):
                raise record.error
        return fetched


class DropsAnUndecodableRecord(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        kept = [each for each in fetched.records if not isinstance(each, UndecodableRecord)]
        return fetched._replace(records=kept)


class BlamesTheWholeFetch(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        bad = [each for each in fetched.records if isinstance(each, UndecodableRecord)]
        if not bad:
            return fetched
        blamed = [
            UndecodableRecord(each.topic, each.partition, each.offset, each.key, error=bad[0].error)
            for each in fetched.records
        ]
        return fetched._replace(records=blamed)


class DeliversAnUndecodableRecordAsIntact(Edits):
    def edited(self, fetched: Fetched) -> Fetched:
        intact = [
            Record(each.topic, each.partition, each.offset, each.key, b"0")
            if isinstance(each, UndecodableRecord)
            else each
            for each in fetched.records
        ]
        return fetched._replace(records=intact)


FOUND = (AssertionError, TimeoutError, RuntimeError, ValueError, ExceptionGroup)

FAULTS: list[tuple[type[MemorySource], str]] = [
    (CommitsWhatItNoLongerHolds, "an_ended_claim_is_not_committed"),
    (CommitsWhatItNoLongerHolds, "a_claim_that_has_moved_is_not_committed"),
    (FailsForOneLostClaim, "a_claim_that_has_moved_is_not_committed"),
    (ChecksBeforeItsLastAwait, "a_commit_is_not_stored_after_its_claim_has_ended"),
    (StoresNoMap, "a_commit_is_stored_with_its_map"),
    (KeepsTheOldMap, "a_position_without_a_map_clears_the_last_one"),
    (ReportsSuccess, "the_answer_of_a_commit_is_true"),
    (BreaksAfterACancelledCommit, "a_cancelled_commit_leaves_the_source_usable"),
    (IgnoresMetadata, "a_commit_is_stored_with_its_map"),
    (LosesTheFirstRecord, "a_commit_is_stored_with_its_map"),
    (LosesTheFirstRecord, "records_are_delivered_in_order_and_once"),
    (DeliversOutOfOrder, "records_are_delivered_in_order_and_once"),
    (DeliversTwice, "records_are_delivered_in_order_and_once"),
    (TellsTooFar, "records_are_delivered_in_order_and_once"),
    (TellsNoHoles, "holes_are_told"),
    (DeliversMoreThanAsked, "records_are_delivered_in_order_and_once"),
    (DeliversUnaskedClaims, "only_the_named_claims_are_delivered"),
    (SwallowsOnCancel, "a_cancelled_fetch_has_delivered_nothing"),
    (SleepsThroughAppends, "a_waiting_fetch_gets_what_is_appended"),
    (DeliversOfLostClaims, "a_returned_partition_is_delivered_from_its_stored_position"),
    (GoesOnWithTheOldPlace, "a_returned_partition_is_delivered_from_its_stored_position"),
    (CommitsAtALoss, "a_loss_commits_nothing"),
    (
        CommitsNothingAtARevoke,
        "a_revoke_stores_the_hosts_positions_and_then_ends_the_claims",
    ),
    (RevokesWithoutWaiting, "a_revoke_waits_for_the_host"),
    (EndsByPartition, "an_older_drain_undoes_no_newer_assignment"),
    (RevokesEverything, "the_other_claims_go_on_in_a_rebalance"),
    (ForgetsToEndItsClaims, "closing_ends_the_claims_and_commits_nothing"),
    (ForgetsToEndItsClaims, "an_error_within_closes_the_source"),
    (TellsTheLastOffset, "the_ends_are_those_of_the_partitions"),
    (KnowsOneEndOnly, "the_lag_is_told_as_declared"),
    (DeclaresWhatItIsNot, "the_declaration_is_what_the_source_implements"),
    (RedeliversWhenKeptAlive, "a_source_lives_without_fetches"),
    (LosesTheFirstRecord, "every_message_is_handled_once_in_order_per_key"),
    (IgnoresMetadata, "a_restart_handles_only_what_was_unfinished"),
    (StoresNoMap, "a_restart_handles_only_what_was_unfinished"),
    (CommitsWhatItHasDelivered, "what_is_only_queued_is_not_committed"),
    (CommitsWhatItHasDelivered, "a_message_that_is_tried_again_holds_the_position"),
    (CommitsWhatItHasDelivered, "a_drain_ends_what_runs_and_leaves_the_rest"),
    (TellsNoHoles, "positions_pass_holes"),
    (LosesTheFirstRecord, "the_window_is_a_bound"),
    (DeliversMoreThanAsked, "a_full_window_is_refilled_below_its_threshold"),
    (LosesTheFirstRecord, "bytes_are_bounded"),
    (LosesTheFirstRecord, "a_drain_reports_what_it_has_cut"),
    (DeliversUnaskedClaims, "a_paused_partition_waits_and_the_others_go_on"),
    (DeliversUnaskedClaims, "a_pause_outlives_its_claim"),
    (AssignsNothing, "readiness_follows_the_assignment"),
    (TellsNothingStored, "positions_are_stored_by_count"),
    (TellsNothingStored, "positions_are_stored_by_time"),
    (TellsNothingStored, "a_failed_commit_is_followed_by_a_newer_one"),
    (CommitsNothingAtARevoke, "a_partition_moves_without_repeats"),
    (RevokesWithoutWaiting, "a_partition_moves_without_repeats"),
    (RevokesEverything, "the_other_partitions_go_on_while_one_drains"),
    (
        GoesOnWithTheOldPlace,
        "a_lost_partition_is_handled_again_and_its_key_is_never_in_two_handlers",
    ),
    (GoesOnWithTheOldPlace, "partitions_that_come_and_go_lose_nothing"),
    (LosesTheFirstRecord, "attempts_are_counted_and_end_in_a_dead_letter"),
    (CommitsWhatItHasDelivered, "a_dead_letter_is_written_before_its_message_is_committed"),
    (LosesTheFirstRecord, "a_dead_letter_that_fails_is_written_again"),
    (CommitsWhatItHasDelivered, "a_blocked_key_waits_for_unblock_and_the_others_go_on"),
    (CommitsWhatItHasDelivered, "too_many_dead_letters_stop_the_consumer"),
    (LosesTheFirstRecord, "a_handler_that_ignores_its_timeout_keeps_its_key"),
    (LosesTheFirstRecord, "what_cannot_be_decoded_is_poison_alone"),
    (LosesTheFirstRecord, "results_of_a_batch_are_by_position"),
    (LosesTheFirstRecord, "a_batch_that_raises_is_split_until_its_poison_is_alone"),
    (DeliversOutOfOrder, "batches_mix_keys_and_partitions_and_never_share_one"),
    (LosesTheFirstRecord, "behind_a_failed_message_its_key_is_handled_again"),
    (SleepsThroughAppends, "a_batch_is_closed_by_size_age_and_drain"),
    (LosesTheFirstRecord, "what_cannot_be_decoded_is_not_in_the_batch"),
    *(
        (fault, name)
        for fault in (
            RaisesForAnUndecodableRecord,
            DropsAnUndecodableRecord,
            BlamesTheWholeFetch,
            DeliversAnUndecodableRecordAsIntact,
        )
        for name in (
            "a_record_that_cannot_be_decoded_is_delivered_in_its_place",
            "what_the_source_cannot_decode_is_poison_alone",
            "what_the_source_cannot_decode_is_not_in_the_batch",
        )
    ),
]


def run(kind: type[MemorySource], name: str) -> None:
    """Run a test of the suite on a source of this class."""

    class Suite(MemorySourceSuite):
        patience = 5.0

        def source(self, topic: str) -> Source:
            return kind(LOGS[topic])

    with FakeClock() as clock:
        clock.run(getattr(Suite(), f"test_{name}")(clock))


@pytest.mark.parametrize(
    ("fault", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_fault_is_found(fault: type[MemorySource], name: str) -> None:
    """consumer/C:N7."""
    run(MemorySource, name)
    with pytest.raises(FOUND):
        run(fault, name)


def test_every_test_of_the_suite_has_been_seen_to_fail() -> None:
    tests = {name.removeprefix("test_") for name in dir(MemorySourceSuite) if "test_" in name[:5]}
    assert tests == {name for _, name in FAULTS}


def test_an_unknown_lack_is_refused() -> None:
    class Suite(MemorySourceSuite):
        lacks = frozenset({"maps"})

    with FakeClock() as clock, pytest.raises(ConfigError, match=r"lacks=.*'maps'"):
        clock.run(Suite().test_holes_are_told(clock))


class StoresNoMapAndSaysSo(StoresNoMap):
    capabilities = replace(MemorySource.capabilities, metadata=False)


def test_a_declared_lack_skips_its_tests() -> None:
    class Suite(MemorySourceSuite):
        capabilities = StoresNoMapAndSaysSo.capabilities
        lacks = frozenset({"holes"})

        def source(self, topic: str) -> Source:
            return StoresNoMapAndSaysSo(LOGS[topic])

    with FakeClock() as clock:
        with pytest.raises(pytest.skip.Exception, match="lacks holes"):
            clock.run(Suite().test_holes_are_told(clock))
        with pytest.raises(pytest.skip.Exception, match="lacks metadata"):
            clock.run(Suite().test_the_answer_of_a_commit_is_true(clock))
        clock.run(Suite().test_a_commit_is_stored_with_its_map(clock))
        clock.run(Suite().test_the_declaration_is_what_the_source_implements(clock))


def test_a_declared_ability_is_no_lack() -> None:
    class Suite(MemorySourceSuite):
        lacks = frozenset({"metadata"})

    with FakeClock() as clock, pytest.raises(ConfigError, match=r"lacks=.*'metadata'.*declaration"):
        clock.run(Suite().test_a_commit_is_stored_with_its_map(clock))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lag": "counts"}, "lag == 'counts' is True"),
        ({"takes_back": True}, "takes_back is True"),
        ({"transactions": "records"}, "transactions == 'positions' is False"),
        ({"transactions": None}, "transactions == 'positions' is False"),
        ({"extends": False}, "extends is False"),
        ({"shares": None}, "cooperative is True"),
    ],
)
def test_a_declaration_that_contradicts_the_source_is_named(
    changed: dict[str, Any], named: str
) -> None:
    source = MemorySource(MemoryLog(), ack_wait=30.0)
    assert contradictions(source.capabilities, source) == []
    (text,) = contradictions(replace(source.capabilities, **changed), source)
    assert text.startswith(named)
