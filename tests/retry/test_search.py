"""The search for an item at fault as a pure structure: a destination, its outages, and one
batch.

White box: the search without a retry.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate.retry.search import ENOUGH, QUIET, Search


class Model:
    """Sends the parts that the search selects until nothing is pending. Every third attempt,
    another batch is written.
    """

    def __init__(
        self, size: int, bad: set[int], outages: list[bool], *, others: bool, keys: list[int] | None
    ) -> None:
        self.bad = bad
        self.outages = outages
        self.others = others
        self.search = Search(keys)
        self.pending = list(range(size))
        self.blamed: list[int] = []
        self.applied: list[int] = []
        self.tickets, self.accepted, self.lies, self.now = 0, -1, 0, 0.0
        self.writes = 0

    def _is_out(self) -> bool:
        self.writes += 1
        return self.writes <= len(self.outages) and self.outages[self.writes - 1]

    def step(self) -> None:
        self.now += 1.0
        if self.others and self.writes % 3 == 2 and not self._is_out():
            self.tickets += 1
            self.accepted = self.tickets - 1
        part = list(self.search.next_part(self.pending, self.accepted, may_pass=True))
        assert part
        assert set(part) <= set(self.pending)
        self.tickets += 1
        if self._is_out() or self.bad.intersection(part):
            found = self.search.refused(
                part,
                self.now,
                accepted=self.accepted,
                next_ticket=self.tickets,
                enough=ENOUGH * (1 + self.lies),
                is_quiet=not self.lies,
            )
            if found is not None:
                self.blamed.append(found)
                self.pending.remove(found)
            return
        self.accepted = self.tickets - 1
        self.lies += self.search.accepted(part)
        self.applied += part
        self.pending = [index for index in self.pending if index not in set(part)]


@examples(100, long=500)
@given(
    size=st.integers(1, 40),
    bad=st.sets(st.integers(0, 39), max_size=3),
    outage=st.integers(0, 60),
    begins=st.integers(0, 60),
    keyed=st.booleans(),
)
def test_only_items_at_fault_are_blamed_and_all_others_arrive(
    size: int, bad: set[int], outage: int, begins: int, keyed: bool
) -> None:
    """Wherever an outage falls into the search, which always ends."""
    keys = [index % 5 for index in range(size)] if keyed else None
    model = Model(size, bad, [False] * begins + [True] * outage, others=True, keys=keys)
    for _ in range(2_000):
        if not model.pending:
            break
        model.step()
    assert not model.pending
    assert sorted(model.blamed) == sorted(index for index in bad if index < size)
    assert sorted(model.applied) == [index for index in range(size) if index not in bad]
    if keyed:
        for key in range(5):
            of_key = [index for index in model.applied if index % 5 == key]
            assert of_key == sorted(of_key)


def test_one_bad_item_of_a_thousand_costs_few_writes() -> None:
    """Two writes for each halving, and those that prove the recovery."""
    model = Model(1_000, {700}, [], others=False, keys=None)
    while model.pending:
        model.step()
    assert model.blamed == [700]
    assert model.writes <= 40


def test_the_last_item_of_a_quiet_stream_is_at_fault_after_a_minute() -> None:
    """Its neighbours were accepted, and no other item is sent that could prove more."""
    model = Model(8, {7}, [], others=False, keys=None)
    while model.pending:
        model.step()
    assert model.blamed == [7]
    assert QUIET < model.now < QUIET + 20


def test_an_item_that_is_alone_from_the_beginning_is_not_blamed_without_evidence() -> None:
    """It would look like any other outage."""
    model = Model(1, {0}, [], others=False, keys=None)
    for _ in range(1_000):
        model.step()
    assert model.blamed == []
