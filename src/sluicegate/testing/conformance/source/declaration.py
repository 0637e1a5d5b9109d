"""Checks of a source's declaration against its implementation.

1. `lacks` must not contradict the declaration.
2. The declaration repeats the facts that follow from protocols and traits, so that all are in one
   place.
3. The lag is as exact as declared: the ends of all partitions, or a count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.positions import SettlesInTransaction
from ...._core.source import (
    CountsLag,
    DeclaresCapabilities,
    ExtendsRecords,
    Position,
    TakesBack,
    TransactionalSource,
)
from .subject import SourceUnderTest

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ...._core.source import Source, SourceCapabilities


def contradictions(declared: SourceCapabilities, source: Source) -> list[str]:
    """Describe each difference between the declaration and the implementation of a source."""
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
        "extends": (declared.extends, isinstance(source, ExtendsRecords)),
        "takes_back": (declared.takes_back, isinstance(source, TakesBack)),
        f"transactions == {transactions!r}": (declared.transactions == transactions, True),
    }
    found = [
        f"{name} is {said} in its capabilities and {is_so} in its implementation"
        for name, (said, is_so) in implemented.items()
        if said is not is_so
    ]
    if declared.cooperative and declared.shares != "partitions":
        found.append("cooperative is True in its capabilities, but it shares no partitions")
    return found


class DeclarationTests(SourceUnderTest):
    """Tests of the declared capabilities."""

    async def test_the_declaration_is_what_the_source_implements(self, clock: Clock) -> None:
        """O-T23: the suite relies on the declaration. A source need not declare anything."""
        async with self.in_time(clock):
            source = self.source(await self.new_topic(1))
            declared = source.capabilities if isinstance(source, DeclaresCapabilities) else None
            assert declared == self.capabilities, (
                f"the source's capabilities differ from those of the suite: {declared}"
            )
            if declared is not None:
                assert contradictions(declared, source) == []

    async def test_the_lag_is_told_as_declared(self, clock: Clock) -> None:
        """It is exact by the end of each partition, or as a count of deliverable records."""
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
