"""One destination, five stacks around it."""

import asyncio

import tenacity

import penstock
from penstock.sinks import MemorySink


class Moody:
    """A destination that fails at its first call, hangs at its second, and never accepts the number
    13.
    """

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, batch: penstock.Batch[int]) -> penstock.WriteResult:
        self.calls += 1
        if self.calls == 1:
            raise penstock.TransientError("try again")
        if self.calls == 2:
            await asyncio.Event().wait()
        return penstock.WriteResult.failed(
            batch, {i: penstock.PermanentError("13") for i, item in enumerate(batch) if item == 13}
        )


letters: MemorySink[penstock.DeadLetterRecord[int]] = MemorySink()
timeout = penstock.Timeout(0.1)
retry = penstock.Retry(backoff=tenacity.wait_fixed(0.05))
STACKS: list[tuple[str, list[penstock.Decorator[int]]]] = [
    ("a bare function", []),
    ("with Retry", [retry]),
    ("with Timeout inside", [timeout, retry]),
    (
        "with DeadLetter outside",
        [timeout, retry, penstock.DeadLetter(letters, take=("permanent", "unknown"))],
    ),
    (
        "with CircuitBreaker too",
        [
            timeout,
            penstock.CircuitBreaker(consecutive=2, open_for=0.2),
            retry,
            penstock.DeadLetter(letters, take=("permanent", "unknown")),
        ],
    ),
]


async def main() -> None:
    limits = penstock.Limits(max_items=20, flush_timeout=0.5)
    for name, decorators in STACKS:
        destination = Moody()
        async with penstock.Batcher(
            penstock.stack(destination, *decorators), limits=limits
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
    penstock.run(main(), accept=("rejected", "unknown"))
