import heapq
import itertools


class RetryHeap:
    def __class_getitem__(cls, x):
        return cls

    def __init__(self):
        self.h = []
        self.n = itertools.count()

    def push(self, due, e):
        heapq.heappush(self.h, (due, next(self.n), e))

    @property
    def next_due(self):
        return self.h[0][0] if self.h else None

    def pop_due(self, now):
        out = []
        while self.h and self.h[0][0] <= now:
            out.append(heapq.heappop(self.h)[2])
        return out

    def remove_where(self, p):
        gone = [e for e in self.h if p(e[2])]
        self.h = [e for e in self.h if not p(e[2])]
        heapq.heapify(self.h)
        return [e[2] for e in gone]

    def __len__(self):
        return len(self.h)

    def __iter__(self):
        return iter([(d, e) for d, _, e in self.h])
