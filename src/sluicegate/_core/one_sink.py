"""A batch is sent to one sink: another one is refused, since it would not get the settled items.

1. `send` omits settled items. That is right for a retry of the same sink, and for items that a
   decorator has settled itself; any other sink would silently get less than the batch.
2. So a delivery stores the sinks whose writes have settled items of it (`settled_by`), those of a
   stack from the inside out. An item that is settled otherwise says nothing about sinks.
3. During a transaction its items belong to it: another transaction could commit, or be rolled
   back, with outcomes that are final only at the end of the first. After its commit the items are
   settled by the transaction's sink, so that another transaction of that sink omits them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checks import shown
from .delivery.held import HoldingSink
from .errors import ConfigError

if TYPE_CHECKING:
    from .delivery.delivery import Delivery

_OTHER_SINK = (
    "send({sink}, batch): {settled} of its {size} items are settled by another sink "
    "({other}), and would not be written to this one; to write items to several sinks, use FanOut "
    "or a batch for each, and to send only the failed ones, batch.pick(errors)"
)
_IN_TRANSACTION = (
    "send({sink}, batch): the batch was sent in another transaction that has not ended, so its "
    "outcomes are not final; end that one first, or make a second batch"
)


def check_holder(sink: object, holder: HoldingSink) -> None:
    """Raise `ConfigError` if `sink` is another transaction than the one that holds the outcomes."""
    if holder is not sink and isinstance(sink, HoldingSink):
        raise ConfigError(_IN_TRANSACTION.format(sink=shown(sink)))


def check_settled_by(sink: object, delivery: Delivery) -> None:
    """Raise `ConfigError` if items are settled by other sinks only. Call it if some are settled."""
    known = [reference() for reference in delivery.settled_by]
    if not known or any(one is sink for one in known):
        return
    if delivery.held is not None:
        raise ConfigError(_IN_TRANSACTION.format(sink=shown(sink)))
    if isinstance(sink, HoldingSink) and any(one is sink.destination for one in known):
        return
    size = len(delivery.states)
    settled = size - delivery.left
    other = "which is gone" if known[-1] is None else shown(known[-1])
    raise ConfigError(_OTHER_SINK.format(sink=shown(sink), settled=settled, size=size, other=other))
