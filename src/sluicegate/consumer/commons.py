"""Objects shared by all parts of an open consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._core.observer import ConsumerObservers
from .counts import Counters
from .signals import Signals

if TYPE_CHECKING:
    from .._core.clock import Clock
    from .._core.observer import ConsumerState


@dataclass(frozen=True, slots=True)
class Commons:
    """The consumer's name, its clock, its counts, its signals and its observers."""

    name: str
    clock: Clock
    counts: Counters = field(default_factory=Counters)
    signals: Signals = field(default_factory=Signals)
    observers: ConsumerObservers = field(default_factory=ConsumerObservers)

    def tell_state(self, state: ConsumerState) -> None:
        """Notify the observers of a state."""
        self.observers.tell(lambda observer: observer.on_state(self.name, state))
