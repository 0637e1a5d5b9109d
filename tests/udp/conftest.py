"""The receiver of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.udp.udp_help import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on its own port."""
    with Receiver() as made:
        yield made
