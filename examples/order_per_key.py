"""Balances per account: in order for each account, with four concurrent writes, and the handling of
movements after a refused one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import NamedTuple

from sluicegate import Batch, Batcher, DeadLetter, Limits, PermanentError, WriteResult, stack
from sluicegate.sinks import DeadLetterRecord


class Movement(NamedTuple):
    """The `number`-th movement of an account."""

    account: str
    number: int
    amount: int


class Book:
    """A destination that takes time for a write, and refuses overdrafts."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = defaultdict(int)
        self.numbers: dict[str, list[int]] = defaultdict(list)

    async def write(self, batch: Batch[Movement]) -> WriteResult:
        await asyncio.sleep(0.01)  # noqa: TID251  # a destination outside of Sluicegate
        refused: dict[int, BaseException] = {}
        for index, movement in enumerate(batch):
            if self.balances[movement.account] + movement.amount < 0:
                refused[index] = PermanentError("overdrawn")
            else:
                self.balances[movement.account] += movement.amount
                self.numbers[movement.account].append(movement.number)
        return WriteResult.failed(batch, refused)


async def main() -> None:
    book, letters = Book(), list[DeadLetterRecord[Movement]]()

    async def keep(records: Batch[DeadLetterRecord[Movement]]) -> None:
        letters.extend(records)

    batcher = Batcher(
        stack(book, DeadLetter(keep)),
        limits=Limits(max_items=50, max_delay=0.05, workers=4),
        key=lambda movement: movement.account,
        on_key_failure="park",
    )
    async with batcher:
        for number in range(40):
            for account in ("ann", "bob", "eve"):
                amount = -1_000 if (account, number) == ("eve", 10) else 10
                await batcher.add(Movement(account, number, amount))
        await batcher.flush()
        for account, numbers in book.numbers.items():
            print(
                f"{account}: {len(numbers)} movements in order: {numbers == sorted(numbers)}, "
                f"balance {book.balances[account]}"
            )
        print(
            "refused: "
            f"{[(letter.item.account, letter.item.number, letter.message) for letter in letters]}"
        )
        print(f"parked behind it: {batcher.stats().held_items}")
        book.balances["eve"] += 1_000  # the account is repaired
        print(f"unparked: {batcher.unpark('eve')}")
        await batcher.flush()
        print(
            f"eve: balance {book.balances['eve'] - 1_000}, in order: "
            f"{book.numbers['eve'] == sorted(book.numbers['eve'])}"
        )


if __name__ == "__main__":
    asyncio.run(main())
