"""Records without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumer_help import finite, log_of

from sluicegate.consumer import Keys

if TYPE_CHECKING:
    import pytest

    from sluicegate import Message
    from sluicegate.testing import FakeClock


async def _most_at_once(clock: FakeClock, **options: object) -> int:
    running = most = 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await clock.sleep(0.1)
        running -= 1

    await finite(log_of(None, None, None, "a"), clock, **options).run(handle)
    return most


async def test_records_without_a_key_are_in_order_and_a_warning_says_so_once(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:O3, consumer/O2: one at a time, beside other keys."""
    assert await _most_at_once(fake_clock) == 2
    said = [
        record.getMessage() for record in caplog.records if "without a key" in record.getMessage()
    ]
    assert len(said) == 1
    assert 'key=Keys(keyless="parallel")' in said[0]


async def test_records_without_a_key_run_at_once_if_their_order_does_not_matter(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/O2, consumer/C:O3: without a warning."""
    assert await _most_at_once(fake_clock, key=Keys(keyless="parallel")) == 4
    assert "without a key" not in caplog.text
