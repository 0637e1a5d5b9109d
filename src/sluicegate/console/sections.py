"""The sections of the console, in the order of the navigation."""

from __future__ import annotations

from .letters import LETTERS
from .live import LIVE
from .overview import OVERVIEW
from .parked import PARKED
from .queues import QUEUES
from .spools import SPOOLS
from .streams import STREAMS

SECTIONS = (OVERVIEW, LIVE, QUEUES, STREAMS, PARKED, LETTERS, SPOOLS)
