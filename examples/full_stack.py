"""One destination, five stacks around it."""

import asyncio

import tenacity

import sluicegate
from sluicegate.sinks import MemorySink


class Moody:
    """A destination that fails at its first call, hangs at its second, and never accepts the number
    13.
    """

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, batch: sluicegate.Batch[int]) -> sluicegate.WriteResult:
        self.calls += 1
        if self.calls == 1:
            raise sluicegate.TransientError("try again")
        if self.calls == 2:
            await asyncio.Event().wait()
        return sluicegate.WriteResult.failed(
            batch,
            {i: sluicegate.PermanentError("13") for i, item in enumerate(batch) if item == 13},
        )


letters: MemorySink[sluicegate.sinks.DeadLetterRecord[int]] = MemorySink()
timeout = sluicegate.Timeout(0.1)
retry = sluicegate.Retry(backoff=tenacity.wait_fixed(0.05))
STACKS: list[tuple[str, list[sluicegate.sinks.Decorator[int]]]] = [
    ("a bare function", []),
    ("with Retry", [retry]),
    ("with Timeout inside", [timeout, retry]),
    (
        "with DeadLetter outside",
        [timeout, retry, sluicegate.DeadLetter(letters, take=("permanent", "unknown"))],
    ),
    (
        "with CircuitBreaker too",
        [
            timeout,
            sluicegate.CircuitBreaker(consecutive=2, open_for=0.2),
            retry,
            sluicegate.DeadLetter(letters, take=("permanent", "unknown")),
        ],
    ),
]


async def main() -> None:
    limits = sluicegate.Limits(max_items=20, flush_timeout=0.5)
    for name, decorators in STACKS:
        destination = Moody()
        async with sluicegate.Batcher(
            sluicegate.stack(destination, *decorators), limits=limits
        ) as batcher:
            await batcher.add_many(range(20))
            await batcher.flush()
        print(f"{name}: {batcher.tally()}; {destination.calls} calls")
    for record in letters.items[:1]:
        print(
            f"a dead letter: {record.item}, {record.error_type}({record.message!r}) after "
            f"{record.attempts} tries"
        )


if __name__ == "__main__":
    # the stacks without a DeadLetter lose some items
    sluicegate.run(main(), accept=("rejected", "unknown"))
