"""The conformance suite of sources.

    class TestMySource(SourceConformance):
        capabilities = MySource.capabilities

        async def new_topic(self, partitions):
            return await make_topic(partitions)

        def source(self, topic):
            return MySource(topic, group=topic)

        async def append(self, topic, partition, entries):
            await produce(topic, partition, entries)

        async def stored(self, topic):
            return await read_positions(topic)

1. Each test makes its own topic; all sources of a topic are one group.
2. The tests drive the source directly, as its host.
3. Declared `capabilities` are tested, and tests of undeclared ones are skipped. `lacks` names other
   missing abilities, or all of them for a source without a declaration. If a rebalance or a loss
   can be forced, the hooks `rebalance` and `lose` do it.
4. The tests run in real time, and wait only for events. If the fixture `clock` is overridden by one
   that returns `fake_clock`, they run in virtual time.
"""

from __future__ import annotations

from .source.claims import ClaimTests
from .source.delivery import CommitTests, DeclarationTests, DeliveryTests


class SourceConformance(DeclarationTests, DeliveryTests, CommitTests, ClaimTests):
    """The suite of every source. Name the subclass `Test...`, and implement the hooks."""
