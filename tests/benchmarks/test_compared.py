"""Comparison of Kafka consumers: Sluicegate's line on the page."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import ROOT

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka


@pytest.mark.soak
@pytest.mark.parametrize(
    ("situation", "seen"),
    [
        ("failed", "committed 3; the repaired process handles [3]; never handled: []"),
        ("replay", "after the restart handled 10, of them again 0; never handled: 0"),
        ("drain", "handled again: 0; never handled: 0"),
        (
            "rebalance",
            "twice: 0; begun while its key ran: 0; begun after a later one of its key: 0",
        ),
    ],
)
def test_sluicegate_does_what_the_page_says(
    embedded_kafka: EmbeddedKafka, situation: str, seen: str
) -> None:
    """The fixture skips without Java; the program starts its own broker."""
    command = [sys.executable, "-m", "benchmarks.compared", situation, "--only", "Sluicegate"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.rstrip().endswith(seen), ran.stdout
