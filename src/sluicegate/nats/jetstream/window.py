"""Computes how many messages to request, within the limits of the window. Pure.

1. The *credit* is the number of requested messages that have not arrived. Credit plus arrived
   messages that were not taken is at most `prefetch`; credit plus held messages is at most the
   server's limit of pending messages. A request beyond that would wait in vain for its whole time.
2. A request is sent when a quarter of the prefetch is missing, or no request is in progress.
3. While messages are pending elsewhere, that many more are requested, even beyond a full prefetch:
   no message is taken before they arrive, and new messages may arrive before them. There is always
   a request for one of them, since they are delivered even if the limit of pending messages is
   exceeded.
4. The server ends a request with a status that contains the remaining number of messages. A request
   that ends without a status (a lost connection, a restarted server) is detected by missing
   heartbeats: then no request is in progress.
"""

from __future__ import annotations

UNLIMITED = 1 << 62


class PullWindow:
    """The requests of one partition."""

    def __init__(self, prefetch: int, max_pending: int) -> None:
        self._prefetch = prefetch
        self._max_pending = max_pending if max_pending > 0 else UNLIMITED
        self.most = UNLIMITED
        """The server's limit of messages per request."""
        self.credit = 0
        """Number of requested messages that have not arrived."""

    def share(self, prefetch: int) -> None:
        """Change the number of messages to fetch ahead."""
        self._prefetch = prefetch

    def limit(self, most: int) -> None:
        """Request at most this many messages at once."""
        self.most = max(1, most)

    def wanted(self, received: int, held: int, away: int = 0) -> int:
        """Return the number of messages to request now; 0 for none.

        Args:
            received: number of messages that have arrived and were not taken.
            held: number of messages that have arrived and are not settled.
            away: number of messages that are pending elsewhere.
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
        """Record a request."""
        self.credit += messages

    def arrived(self) -> None:
        """Record a message."""
        if self.credit > 0:
            self.credit -= 1

    def ended(self, left: int) -> None:
        """Record the end of a request, and the number of messages that it did not deliver."""
        self.credit = max(0, self.credit - left)

    def lost(self) -> None:
        """Record that no request is in progress."""
        self.credit = 0
