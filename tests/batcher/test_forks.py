"""Forked children run no part of their parent's work: batchers raise, and sinks may be opened
again.
"""

from __future__ import annotations

import os

import pytest
from process_help import script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

PARENT = """
    import asyncio, os, sys, warnings
    from penstock import Batcher, BlockingBatcher, ForkedError, Limits, Openable

    warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads running: that is the point

    class Shown(Openable):
        _run_time = ("connection",)
        connection = None

        async def _open(self, stack):
            self.connection = f"connection {os.getpid()}"
            stack.callback(lambda: print("closed", self.who, flush=True))

        async def write(self, batch):
            assert self.connection == f"connection {os.getpid()}"
            print("wrote", self.who, *batch, flush=True)

        @property
        def who(self):
            return "by the parent" if os.getpid() == parent else "by the child"

    parent = os.getpid()

    def in_child(function):
        child = os.fork()
        if child == 0:
            try:
                function()
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


def test_a_batcher_used_in_a_forked_child_says_so() -> None:
    """batcher/4b.14: every call raises `ForkedError`, nothing is written twice, and the parent
    continues.
    """
    out = script(
        PARENT
        + """
    async def main():
        sink = Shown()
        idle = Batcher(sink)
        async with Batcher(sink, name="audit", limits=Limits(max_delay=60.0)) as batcher:
            await batcher.add("before")
            await batcher.add("before too")

            async def child():
                calls = [batcher.add(1), batcher.add_many([1]), batcher.submit(1), batcher.deliver(1), batcher.flush(), batcher.shutdown()]
                for call in [*calls, batcher.__aenter__()]:
                    try:
                        await call
                    except ForkedError as error:
                        assert "batcher 'audit' was opened by the parent" in str(error)
                    else:
                        raise AssertionError(call)
                try:
                    batcher.try_add(1)
                except ForkedError:
                    pass
                else:
                    raise AssertionError
                assert batcher.tally().accepted == 0
                assert batcher.stats().state == "forked"
                assert not sink.is_open
                await sink.__aexit__(None, None, None)  # of an opening that is the parent's
                async with Batcher(sink) as mine, idle:
                    await mine.add("mine")
                    await idle.flush()

            in_child(lambda: asyncio.run(child()))
            await batcher.add("after")

    asyncio.run(main())
    """
    )
    assert out.splitlines() == [
        "wrote by the child mine",
        "closed by the child",
        "wrote by the parent before before too after",
        "closed by the parent",
    ]


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_a_fork_while_the_sink_is_being_opened_leaves_that_to_the_parent(mode: str) -> None:
    """The child opens nothing, and may use the same sink in its own batcher."""
    out = script(
        PARENT
        + f"""
    class Down(Shown):
        is_down = True

        async def _open(self, stack):
            if self.is_down:
                asyncio.get_running_loop().call_soon(down.set)
                raise ConnectionRefusedError("down")
            await super()._open(stack)

    async def main():
        global down
        down, sink = asyncio.Event(), Down()
        batcher = Batcher(sink, name="audit", open="{mode}", open_timeout=20.0)
        entering = asyncio.create_task(batcher.__aenter__())
        await down.wait()
        sink.is_down = False

        async def child():
            try:
                await batcher.add("child")
            except ForkedError:
                pass
            else:
                raise AssertionError
            assert batcher.stats().state == "forked"
            async with Batcher(sink) as mine:
                await mine.add("mine")

        in_child(lambda: asyncio.run(child()))
        await entering
        await batcher.add("after")
        await batcher.shutdown()

    import logging
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    asyncio.run(main())
    """
    )
    assert out.splitlines() == [
        "wrote by the child mine",
        "closed by the child",
        "wrote by the parent after",
        "closed by the parent",
    ]


@pytest.mark.parametrize("start", ["pass", "batcher.start()"])
def test_a_sink_is_opened_again_by_the_child_of_a_threaded_program(start: str) -> None:
    """batcher/4b.14: the parent's connection is neither used nor closed. The first call opens a new
    one, and so does a server's hook for its workers.
    """
    out = script(
        PARENT
        + f"""
    def child():
        {start}
        batcher.add("mine")
        batcher.shutdown()

    with BlockingBatcher(Shown(), limits=Limits(max_delay=60.0)) as batcher:
        batcher.add("before")
        in_child(child)
        batcher.add("after")
    """
    )
    assert out.splitlines() == [
        "wrote by the child mine",
        "closed by the child",
        "wrote by the parent before after",
        "closed by the parent",
    ]
