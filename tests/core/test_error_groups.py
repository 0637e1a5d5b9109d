"""Groups of errors: by identity, because equal exceptions may be different objects.

White box: the grouping alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sluicegate._core.classify import by_error


@dataclass(eq=True)
class EqualError(Exception):
    """Equal to others with the same code, and not hashable."""

    code: int


class FalsyError(Exception):
    def __bool__(self) -> bool:
        return False


def test_an_error_of_all_items_is_one_group() -> None:
    error = FalsyError()
    assert by_error({}) == []
    ((found, indices),) = by_error(dict.fromkeys(range(3), error))
    assert found is error
    assert list(indices) == [0, 1, 2]


def test_equal_errors_that_are_not_the_same_stay_apart() -> None:
    one, other = EqualError(1), EqualError(1)
    assert one == other
    groups = by_error({0: one, 1: other, 2: one})
    assert [id(error) for error, _ in groups] == [id(one), id(other)]
    assert [list(indices) for _, indices in groups] == [[0, 2], [1]]


@given(st.lists(st.integers(0, 4), max_size=30))
def test_every_item_is_in_the_group_of_its_error_and_groups_are_in_order(codes: list[int]) -> None:
    known = [EqualError(0) for _ in range(5)]
    errors = {3 * place: known[code] for place, code in enumerate(codes)}
    groups = by_error(errors)
    assert {i: id(e) for e, indices in groups for i in indices} == {
        index: id(error) for index, error in errors.items()
    }
    assert len({id(error) for error, _ in groups}) == len(groups)
    firsts = [next(iter(indices)) for _, indices in groups]
    assert firsts == sorted(firsts)
