"""How many messages to ask for: never more than what is left of the window. Pure.

1. The *credit* is what was asked for and has not arrived. Credit and what has arrived and was not
   taken are at most `prefetch`; credit and what is held are at most what the server lets be pending.
   A request beyond that waits its whole time for nothing.
2. A request is sent when a quarter of the prefetch is missing, or nothing is under way.
3. While messages are pending that are not here, as many more are asked for, also beyond the prefetch
   once that is full: nothing is taken before they are there, and new messages may come before them. For
   one of them there is always a request: they come even if more are pending than may be.
4. The server ends a request with a status that says how much of it is left. A request that ends
   without one (a lost connection, a restarted server) shows by the missing heartbeats: then nothing is
   under way.
"""

from __future__ import annotations

UNLIMITED = 1 << 62


class PullWindow:
    """The requests of one partition."""

    def __init__(self, prefetch: int, max_pending: int) -> None:
        self._prefetch = prefetch
        self._max_pending = max_pending if max_pending > 0 else UNLIMITED
        self.most = UNLIMITED
        """The most messages that the server lets one request ask for."""
        self.credit = 0
        """Messages that were asked for and have not arrived."""

    def share(self, prefetch: int) -> None:
        """Change how many messages are fetched ahead."""
        self._prefetch = prefetch

    def limit(self, most: int) -> None:
        """Ask for at most this many messages in one request."""
        self.most = max(1, most)

    def wanted(self, received: int, held: int, away: int = 0) -> int:
        """How many messages to ask for now; 0 for none.

        Args:
            received: messages that arrived and were not taken.
            held: messages that arrived and are not settled.
            away: messages that are pending and did not arrive.
        """
        ahead = self._prefetch + away
        missing = min(ahead - received, self._max_pending - held) - self.credit
        least = max(1, self._prefetch // 4)
        if missing >= least or (missing > 0 and self.credit == 0):
            return min(missing, self.most)
        if away and self.credit == 0:
            return min(away, max(1, self._max_pending - held), self.most)
        return 0

    def ask(self, messages: int) -> None:
        """Note a request."""
        self.credit += messages

    def arrived(self) -> None:
        """Note a message."""
        if self.credit > 0:
            self.credit -= 1

    def ended(self, left: int) -> None:
        """Note that a request has ended with this many messages left."""
        self.credit = max(0, self.credit - left)

    def lost(self) -> None:
        """Note that no request is under way."""
        self.credit = 0
