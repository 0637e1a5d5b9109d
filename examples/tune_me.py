"""The subject of `sluicegate tune tune_me:sink --items tune_me:row`: a sink, and a function that
makes items. DSN is read from the environment.
"""

import os
import time

from sluicegate.postgres import PostgresSink

STARTED = time.time_ns()


def sink() -> PostgresSink:
    return PostgresSink(
        os.environ["DSN"], table="audit", columns=("id", "action"), on_conflict="ignore"
    )


def row(number: int) -> tuple[int, str]:
    """Make a new row for each number and each run: existing rows are written faster."""
    return STARTED + number, "login"
