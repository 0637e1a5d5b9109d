"""Sinks that combine several sinks."""

from ..._core.public import publish
from .fan_out import FanOut
from .router import Router

__all__ = ["FanOut", "Router"]

publish("penstock", FanOut, Router)
