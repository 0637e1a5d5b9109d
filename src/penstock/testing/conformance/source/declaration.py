"""What a source declares, and whether it is so.

1. What the declaration tells of an ability of the suite, `lacks` must not tell otherwise.
2. What a protocol or a trait tells already, the declaration repeats, so that it stands in one place.
3. The lag is as exact as declared: the ends of all partitions, or a count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.positions import SettlesInTransaction
from ...._core.source import (
    CountsLag,
    DeclaresCapabilities,
    Position,
    TakesBack,
    TransactionalSource,
)
from .subject import SourceUnderTest

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ...._core.source import Source, SourceCapabilities


def contradictions(declared: SourceCapabilities, source: Source) -> list[str]:
    """What a source declares and does not implement, or the other way round, one text each."""
    transactions = (
        "positions"
        if isinstance(source, TransactionalSource)
        else "records"
        if isinstance(source, SettlesInTransaction)
        else None
    )
    traits = source.traits
    implemented = {
        "lag == 'counts'": (declared.lag == "counts", isinstance(source, CountsLag)),
        "shares == 'keys'": (declared.shares == "keys", traits.short_claims),
        "settles_each": (declared.settles_each, traits.settles_each),
        "takes_back": (declared.takes_back, isinstance(source, TakesBack)),
        f"transactions == {transactions!r}": (declared.transactions == transactions, True),
    }
    found = [
        f"{name} is {said} by its capabilities and {is_so} by what it implements"
        for name, (said, is_so) in implemented.items()
        if said is not is_so
    ]
    if traits.extend_every is not None and not declared.extends:
        found.append("extends is False by its capabilities, and its traits have an extend_every")
    if declared.cooperative and declared.shares != "partitions":
        found.append("cooperative is True by its capabilities, and it shares no partitions")
    return found


class DeclarationTests(SourceUnderTest):
    """Whether the capabilities are those of the source."""

    async def test_the_declaration_is_what_the_source_implements(self, clock: Clock) -> None:
        """O-T23: and what the suite goes by. A source need not declare anything."""
        async with self.in_time(clock):
            source = self.source(await self.new_topic(1))
            declared = source.capabilities if isinstance(source, DeclaresCapabilities) else None
            assert declared == self.capabilities, (
                f"the source declares other capabilities than the suite has: {declared}"
            )
            if declared is not None:
                assert contradictions(declared, source) == []

    async def test_the_lag_is_told_as_declared(self, clock: Clock) -> None:
        """By the end of each partition, or as a count of what can be delivered."""
        lag = None if self.capabilities is None else self.capabilities.lag
        async with self.in_time(clock):
            topic = await self.filled([7, 3])
            async with self.reading(topic, 2) as reader:
                claims = {claim.partition.partition: claim for claim in reader.host.open}
                await reader.read(reader.host.open, 10)
                if lag == "ends":
                    ends = await reader.source.ends(reader.host.open)
                    assert ends == {claims[0]: 7, claims[1]: 3}
                elif lag == "counts":
                    await reader.commit({claims[1]: Position(2)})
                    assert isinstance(reader.source, CountsLag)
                    unread = await reader.source.lag({claims[0]: 0, claims[1]: 2})
                    assert {claim: each.messages for claim, each in unread.items()} == {
                        claims[0]: 7,
                        claims[1]: 1,
                    }
