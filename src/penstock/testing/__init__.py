"""Test your own code as Penstock tests itself: a fake clock, scripted sinks, real servers that start from packages."""

from .._core.clock import LoopClock
from .._core.public import publish
from ._clock import FakeClock
from ._loop import WouldHang
from ._postgres import EmbeddedPostgres, embedded_postgres
from ._require import EmbeddedUnavailable, skip_or_fail

__all__ = ["EmbeddedPostgres", "EmbeddedUnavailable", "FakeClock", "LoopClock", "WouldHang", "embedded_postgres", "skip_or_fail"]

publish(__name__, EmbeddedPostgres, EmbeddedUnavailable, FakeClock, WouldHang, embedded_postgres, skip_or_fail)
