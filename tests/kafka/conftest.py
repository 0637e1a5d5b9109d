"""Group members that notice changes soon, and are not lost on a busy machine.

White box: the longest interval of heartbeats.
"""

from __future__ import annotations

import pytest

from sluicegate.kafka.client import options as of_aiokafka
from sluicegate.kafka.confluent import options as of_librdkafka


@pytest.fixture(autouse=True)
def often_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a heartbeat every half second, however long a session lasts without one."""
    for each in (of_aiokafka, of_librdkafka):
        monkeypatch.setattr(each, "LONGEST_HEARTBEAT", 0.5)
