"""Planted bugs in the code that keeps a key in order: each is a small change, detected within some
hundred seeds.

White box: the bugs are planted in private code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import test_keyed_failures
import test_keyed_order

import sluicegate.batcher.books
import sluicegate.retry.retrying
import sluicegate.sinks.dead_letter
from sluicegate._core.order.lanes import Lane, Lanes
from sluicegate.batcher.dispatch import Dispatcher
from sluicegate.batcher.gathering.holds import KeyHolds, Parking
from sluicegate.batcher.gathering.tenants import TenantGatherer
from sluicegate.retry.series import RetrySeries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = 400


def a_key_is_free_while_it_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of a batch are released once one of them backs off."""

    def backs_off(self: Dispatcher[Any], flight: Any) -> None:
        self.window.close()
        self.gathering.gatherer.done(flight.sealed, range(len(flight.batch)))

    monkeypatch.setattr(Dispatcher, "backs_off", backs_off)


def a_key_is_free_once_its_write_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is released although its write is still running."""
    real = Dispatcher.book_outcome

    def book_outcome(
        self: Dispatcher[Any], flight: Any, indices: Any, outcome: Any, details: Any
    ) -> None:
        real(self, flight, indices, outcome, details)
        if flight.cut_cause is not None:
            self.window.close()
            self.gathering.gatherer.done(flight.sealed, indices)

    monkeypatch.setattr(Dispatcher, "book_outcome", book_outcome)


def a_lane_is_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Last in, first out."""

    def wait(self: Lanes[Any], entry: Any) -> None:
        lane = self._lanes.setdefault(entry.lane_key, Lane(None))
        entry.behind, lane.first = lane.first, entry
        lane.last = lane.last or entry
        lane.length += 1
        self.waiting += 1
        if self._arrivals is not None:
            self._arrivals[entry] = None

    monkeypatch.setattr(Lanes, "wait", wait)


def what_is_put_back_comes_back_turned_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix rule puts a key's items back in reverse order."""
    real = Lanes.put_back
    monkeypatch.setattr(
        Lanes, "put_back", lambda self, key, entries: real(self, key, entries[::-1])
    )


def what_stands_behind_a_failed_item_fails_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix rule is missing: each error counts for its own item only."""
    monkeypatch.setattr(sluicegate.batcher.books, "leaders", lambda batch, errors: {})
    monkeypatch.setattr(sluicegate.retry.retrying, "leaders", lambda batch, errors: {})
    monkeypatch.setattr(RetrySeries, "leave_behind", lambda self, tried: None)
    monkeypatch.setattr(sluicegate.sinks.dead_letter, "held_back", lambda batch, errors: errors)


def a_key_goes_on_behind_what_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also continues behind a permanently failed item, whatever the policy."""
    monkeypatch.setattr(KeyHolds, "stop", lambda self, batch, indices: None)


def a_tenant_is_forgotten_with_its_held_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has no pending items."""

    def forget(self: TenantGatherer[Any], queue: Any) -> None:
        ledger = queue.ledger
        if not ledger.inside and not ledger.waiting and not ledger.granted:
            self._queues.pop(queue.tenant, None)

    monkeypatch.setattr(TenantGatherer, "forget", forget)


def what_fails_behind_its_key_keeps_its_tenants_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rejected, and still counts as pending for its tenant."""
    real = KeyHolds.look_at

    def look_at(self: KeyHolds[Any], key: Any) -> None:
        before = self._ledger.queued
        real(self, key)
        self._ledger._queued += before - self._ledger.queued

    monkeypatch.setattr(KeyHolds, "look_at", look_at)


TWO_WRITES = "in two writes at once"
OUT_OF_ORDER = "(applied|a batch|handed back) out of order|is settled after"


def complaints() -> Iterator[AssertionError]:
    """The violations that the seeds report. A bug may break several rules, and the first violation
    depends on the random numbers of the Python version.
    """
    for seed in range(SEEDS):
        try:
            test_keyed_order.run_all(range(seed, seed + 1))
        except AssertionError as error:
            yield error


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (a_key_is_free_while_it_backs_off, f"{TWO_WRITES}|{OUT_OF_ORDER}"),
        pytest.param(
            a_key_is_free_once_its_write_is_cut, TWO_WRITES, marks=pytest.mark.soak
        ),  # the machine detects it sooner
        (a_lane_is_a_stack, OUT_OF_ORDER),
        (what_is_put_back_comes_back_turned_round, OUT_OF_ORDER),
        (what_stands_behind_a_failed_item_fails_with_it, f"{OUT_OF_ORDER}|behind one that failed"),
        (a_key_goes_on_behind_what_is_handed_back, "behind one that failed|UNSENT"),
        (a_tenant_is_forgotten_with_its_held_keys, "inside of each tenant"),
        (what_fails_behind_its_key_keeps_its_tenants_room, "inside of each tenant"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::ResourceWarning",
    "ignore::RuntimeWarning",
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I5, batcher/4a.10: the report names the broken rule, and how to reproduce it."""
    plant(monkeypatch)
    error = next(error for error in complaints() if re.search(complaint, str(error)))
    (again,) = re.findall("python -c '(.*)'", error.__notes__[0])
    with pytest.raises(AssertionError, match=complaint):
        exec(again, {})


def test_a_parked_key_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: a lane that never spills fills the ledger."""
    monkeypatch.setattr(Parking, "look_at", lambda self, key, lane: None)
    with pytest.raises(AssertionError, match="29 unsent"):
        test_keyed_failures.test_park_holds_so_many_and_spills_the_oldest_in_order()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(100, logger="sluicegate")
