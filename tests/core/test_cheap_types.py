"""Types used by every batch are made cheap without a change of behaviour: equal, immutable,
picklable.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle

import pytest

from sluicegate import CircuitState, ErrorClass, Lineage, Outcome, Reason
from sluicegate._core.batch import sealed_lineage
from sluicegate._core.delivery.host import DestinationState

HOT: list[type[enum.Enum]] = [Outcome, Reason, ErrorClass, DestinationState]


@pytest.mark.parametrize("kind", HOT)
def test_the_hash_of_an_enum_member_is_one_call_into_c(kind: type[enum.Enum]) -> None:
    """Members are dictionary keys in the path of every batch; Enum's own hash is in Python."""
    assert kind.__hash__ is object.__hash__


@pytest.mark.parametrize("kind", [*HOT, CircuitState])
def test_a_copied_or_unpickled_member_is_the_same_key(kind: type[enum.Enum]) -> None:
    for member in kind:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(member, protocol))
            assert again is member
            assert {member: 1}[again] == 1
        assert copy.deepcopy(member) is member
        assert kind(member.value) is member
        assert kind[member.name] is member


def lineages() -> tuple[Lineage, Lineage]:
    """One made for a sealed batch, and one created by its public name."""
    return (
        sealed_lineage("batch-1", Reason.BYTES, "events", 1.5, 2.5, "acme"),
        Lineage(
            id="batch-1",
            reason=Reason.BYTES,
            name="events",
            oldest_at=1.5,
            sealed_at=2.5,
            tenant="acme",
        ),
    )


def test_the_lineage_of_a_sealed_batch_equals_one_made_by_name() -> None:
    sealed, named = lineages()
    assert type(sealed) is Lineage
    assert sealed == named
    assert hash(sealed) == hash(named)
    assert repr(sealed) == repr(named)
    assert dataclasses.asdict(sealed) == dataclasses.asdict(named)
    assert [field.name for field in dataclasses.fields(sealed)] == [
        "id", "reason", "name", "oldest_at", "sealed_at", "tenant", "is_replay",
    ]  # fmt: skip
    assert dataclasses.replace(sealed, name="other") == dataclasses.replace(named, name="other")


@pytest.mark.parametrize("which", [0, 1])
def test_a_lineage_is_immutable_and_has_no_room_for_more(which: int) -> None:
    lineage = lineages()[which]
    with pytest.raises(dataclasses.FrozenInstanceError):
        lineage.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del lineage.name  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises((AttributeError, TypeError)):  # as the interpreter's dataclasses do
        lineage.more = 1  # type: ignore[attr-defined]
    assert not hasattr(lineage, "__dict__")


def test_a_lineage_is_copied_and_pickled_to_an_equal_one() -> None:
    sealed, named = lineages()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(sealed, protocol))
        assert type(again) is Lineage
        assert again == named
    assert copy.copy(sealed) == named
    assert copy.deepcopy(sealed) == named
