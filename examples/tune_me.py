"""What `penstock tune tune_me:sink --items tune_me:row` measures: a sink, and a function that makes
items. DSN is in the environment.
"""

import os
import time

from penstock.sinks import PostgresSink

STARTED = time.time_ns()


def sink() -> PostgresSink:
    return PostgresSink(
        os.environ["DSN"], table="audit", columns=("id", "action"), on_conflict="ignore"
    )


def row(number: int) -> tuple[int, str]:
    """A new row for each number, and for each run: rows that are there already are written
    faster.
    """
    return STARTED + number, "login"
