"""The messages that the handlers of all members have received, and what was reported to the
server.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.nats.jetstream.server_model import sequence_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.nats.jetstream.server_model import ServerModel


class Truth:
    """The order of first handlings and first settlements, and the verbs sent."""

    def __init__(self, server: ServerModel) -> None:
        self.server = server
        self.handled: set[int] = set()
        self.settled: set[int] = set()
        self._verbs: dict[tuple[str, str], str] = {}
        """The last terminal verb of each delivery, by sending member."""
        self._repeatable: dict[str, set[str]] = defaultdict(set)

    def _earlier(self, sequence: int) -> set[int]:
        keys = self.server.keys
        key = keys[sequence - 1]
        return {each for each in range(1, sequence) if keys[each - 1] == key}

    def handle(self, sequence: int) -> None:
        """Record a handled message."""
        overtaken = self._earlier(sequence) - self.handled
        assert not overtaken, f"overtook: {sequence} was handled before {sorted(overtaken)}"
        self.handled.add(sequence)

    def ack(self, member: str, reply: str) -> None:
        """Forward an acknowledgement."""
        sequence = sequence_of(reply)
        assert sequence in self.handled, f"never handled: {sequence} was settled"
        self._note(member, reply, "ack")
        if self.server.ack(reply):
            overtaken = self._earlier(sequence) - self.settled
            assert not overtaken, f"overtook: {sequence} was settled before {sorted(overtaken)}"
            self.settled.add(sequence)

    def give_back(self, member: str, replies: Sequence[str]) -> None:
        """Forward negative acknowledgements."""
        sequences = [*map(sequence_of, replies)]
        assert sequences == sorted(sequences), f"out of order: {sequences} were given back"
        for reply in replies:
            self._note(member, reply, "nak")
            self.server.nak(reply)

    def may_repeat(self, member: str) -> None:
        """Record that a member's verbs may be lost, so that it may repeat them."""
        sent = {reply for who, reply in self._verbs if who == member}
        self._repeatable[member] |= sent

    def _note(self, member: str, reply: str, verb: str) -> None:
        said = self._verbs.get((member, reply))
        again = said == verb and reply in self._repeatable[member]
        assert said is None or again, f"settled twice: {reply} with {said} and {verb}"
        self._verbs[member, reply] = verb
        self._repeatable[member].discard(reply)
