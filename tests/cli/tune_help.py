"""The module whose sinks and item functions the tests of `sluicegate tune` use."""

from __future__ import annotations

PROGRAM = '''
import asyncio
from sluicegate import PermanentError

class Slow:
    """10 ms a write, nothing for an item."""
    async def write(self, batch):
        await asyncio.sleep(0.01)

class Narrow:
    async def write(self, batch):
        if len(batch) > 10:
            raise PermanentError("too wide")

class Deaf:
    async def write(self, batch):
        print("writing", flush=True)
        await asyncio.sleep(60)
    async def __aenter__(self):
        return self
    async def __aexit__(self, *error):
        print("closed", flush=True)

async def loud(batch):
    print("loud")
    await asyncio.sleep(0.01)

class Stuck:
    """The third size never ends."""
    async def write(self, batch):
        await asyncio.sleep(60 if len(batch) == 100 else 0.01)
        if len(batch) == 10:
            print("ten", flush=True)

slow, narrow, stuck = Slow(), Narrow(), Stuck()

def deaf():
    return Deaf()

no_sink = 5

def item(number):
    return number, "x"

async def item_later(number):
    return number

def items(number):
    yield number

def no_item(number):
    raise ValueError("nothing")

def two_hundred(number):
    if number == 200:
        raise ValueError("no more")
    return number

def no_password():
    raise KeyError("PASSWORD")
'''

QUICK = ("--items", "tuned:item", "--yes")
