"""The members of enums with a hash of their own are the same keys after a copy.

White box: one of the enums is private.
"""

from __future__ import annotations

import copy
import enum
import pickle

import pytest

from sluicegate import ErrorClass, Outcome
from sluicegate._core.delivery.host import DestinationState
from sluicegate.batcher import Reason
from sluicegate.retry import CircuitState

HOT: list[type[enum.Enum]] = [Outcome, Reason, ErrorClass, DestinationState]


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
