"""Planted bugs of pipes: each is a small change of one method, with the law that detects it.

White box: the methods that the bugs replace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sluicegate import Batcher, Outcome
from sluicegate._core.delivery.delivery import Delivery
from sluicegate.batcher.feed import Feed
from sluicegate.consumer.progress import tracker
from sluicegate.consumer.progress.claims import Claims
from sluicegate.flow import rows
from sluicegate.flow.rows import FailedRow, PipedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from sluicegate.flow.rows import PipedRow

    Mutant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """A mutant, the law that detects it, and the settings in which it shows."""

    plant: Mutant
    law: str
    where: dict[str, Any]


ALL: dict[str, Planted] = {}


def mutant(law: str, **where: Any) -> Callable[[Mutant], Mutant]:
    """Register a mutant with its law and settings."""

    def note(plant: Mutant) -> Mutant:
        ALL[plant.__name__] = Planted(plant, law, {"trouble": 0.3, "is_keyed": True, **where})
        return plant

    return note


@mutant("began after the end", retry_attempts=1000)
def withdraw_without_the_sticky_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row at the destination when its claim ends is sent again if that write fails."""
    monkeypatch.setattr(Delivery, "withdraw", lambda self, indices: None)


@mutant("overtook", retry_attempts=0)
def unknown_frees_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rows of the key do not wait for the row to be sent again."""
    real = Batcher.feed

    def feed(self: Batcher[Any], *, holds: Any, resolve_all: Any) -> Feed[Any]:
        return real(self, set(holds) - {Outcome.UNKNOWN}, resolve_all)

    monkeypatch.setattr(Batcher, "feed", feed)


@mutant("committed past", rows="varied", commit_every=0.05)
def a_record_is_settled_before_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is settled by its first row."""

    def end_row(
        self: PipedMessage, row: PipedRow, outcome: Outcome, cause: BaseException | None
    ) -> None:
        self.inside -= 1
        self.rows.remove(row)
        if outcome.is_safe:
            self._end.acknowledge(self)
        else:
            self._end.add_failed(FailedRow(row, row.item, outcome, cause))

    monkeypatch.setattr(PipedMessage, "end_row", end_row)


@mutant("committed past", is_keyed=False, rows="one", commit_every=0.05)
def a_span_is_acknowledged_over_failed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a batch count as one span, although others lie between them."""
    monkeypatch.setattr(tracker, "is_run", lambda indices: True)


@mutant("overtook", keys=("a",), partitions=1, retry_attempts=0, prefix_safe=True)
def failed_rows_are_sent_again_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed rows are sent again in reverse order."""
    monkeypatch.setattr(rows, "_number_of", lambda row: -row.receipt.number)


@mutant("unmarked", retry_attempts=0)
def what_comes_again_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resent row is not marked after an unknown outcome."""
    real = Feed.resubmit

    def resubmit(self: Any, items: Any, receipts: Any, *, maybe_applied: Any) -> None:
        real(self, items, receipts, maybe_applied=False)

    monkeypatch.setattr(Feed, "resubmit", resubmit)


@mutant("forgotten", trouble=0.0)
def a_revoke_commits_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoke returns the stored position instead of the new one."""
    real = Claims.revoked

    async def revoked(self: Claims, claims: Any, within: float) -> Any:
        await real(self, claims, within)
        return {claim: claim.committed for claim in self._mine(claims)}

    monkeypatch.setattr(Claims, "revoked", revoked)
