"""Assembly of the parts that deal with messages which cannot be handled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .._core.source import TakesBack
from .blocked import Blocked
from .departures import Departures
from .giving_back import Returns
from .insisting import Insisting
from .letter_circuit import LetterCircuit
from .parker import Parker
from .poison import Poison
from .unparking import Replays

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._core.source import Source
    from .commons import Commons
    from .errands import Errands
    from .keys import KeyRules
    from .poison import Letters
    from .schedule import Schedule
    from .settings import ConsumerSettings


class FailureParts(NamedTuple):
    """The parts that carry out poison strategies, and operators' actions on poison messages."""

    poison: Poison
    blocked: Blocked
    parker: Parker | None
    replays: Replays | None
    returns: Returns | None


def failures(
    source: Source,
    settings: ConsumerSettings,
    schedule: Schedule,
    errands: Errands,
    commons: Commons,
    *,
    keys: KeyRules,
    stop: Callable[[BaseException], None],
    letters: Letters | None,
) -> FailureParts:
    """Create the parts that these settings need; `stop` ends the consumer with an error."""
    circuit = LetterCircuit(settings.max_dead_letter_ratio, settings.max_consecutive_dead_letters)
    departures = Departures(schedule, circuit, commons)
    insisting = Insisting(commons, settings.retry.backoff)
    parker = replays = returns = None
    if isinstance(source, TakesBack):
        returns = Returns(source, errands, departures, insisting, commons)
    if settings.parked is not None:
        shared = settings.parked, schedule, errands, commons
        parker = Parker(*shared, keys=keys, departures=departures, insisting=insisting)
        replays = Replays(*shared, parker=parker, departures=departures, insisting=insisting)
    poison = Poison(
        settings.poison,
        schedule,
        errands,
        commons,
        circuit=circuit,
        departures=departures,
        insisting=insisting,
        stop=stop,
        letters=letters,
        parker=parker,
        replays=replays,
        returns=returns,
    )
    return FailureParts(poison, Blocked(schedule, poison), parker, replays, returns)
