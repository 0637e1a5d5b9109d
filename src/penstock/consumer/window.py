class Window:
    def __init__(self, max_messages, max_bytes, refill_below=0.75):
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.messages = self.bytes = 0
        self._low, self._low_bytes = max_messages * refill_below, max_bytes * refill_below
        self._full = False

    def take(self, messages, bytes):
        self.messages += messages
        self.bytes += bytes
        if self.messages >= self.max_messages or self.bytes >= self.max_bytes:
            self._full = True

    def give(self, messages, bytes):
        self.messages -= messages
        self.bytes -= bytes

    @property
    def room(self):
        if self._full:
            if self.messages > self._low or self.bytes > self._low_bytes:
                return 0
            self._full = False
        return self.max_messages - self.messages

    def fitting(self, sizes):
        left = self.max_bytes - self.bytes
        count = min(len(sizes), self.max_messages - self.messages)
        if sum(sizes) <= left:
            return count
        n = 0
        for s in sizes[:count]:
            left -= s
            if left < 0:
                break
            n += 1
        return n or (1 if not self.messages else 0)
