"""Forked children run no part of their parent's work: batchers raise, and sinks may be opened
again.

White box: one program holds every private lock at a fork.
"""

from __future__ import annotations

import os
import sys

import pytest
from process_help import script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")

PARENT = """
    import asyncio, ctypes, os, pathlib, select, sys, threading, warnings
    from sluicegate import Batcher, BlockingBatcher, Limits
    from sluicegate.errors import ForkedError
    from sluicegate.sinks import Openable

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

    def others():
        tasks = [task for task in pathlib.Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]
        return [(task / name).read_text() for task in tasks for name in ("stat", "schedstat")]

    def fork_of_c():
        # a thread that waits for the GIL now may block the child for ever
        before = None
        while before != (before := others()) or any(") R " in each for each in before):
            select.select([], [], [], 0.02)
        return ctypes.PyDLL(None).fork()  # keeps the GIL, as uWSGI does; runs none of Python's hooks

    def in_child(function, fork=os.fork):
        child = fork()
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


@pytest.mark.parametrize("mode", ["lazy", pytest.param("eager", marks=pytest.mark.long)])
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
    logging.getLogger("sluicegate").setLevel(logging.CRITICAL)
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


@pytest.mark.parametrize(
    ("fork", "key"),
    [
        ("os.fork", "None"),
        ("fork_of_c", "lambda item: (item,)"),
        pytest.param("os.fork", "lambda item: (item,)", marks=pytest.mark.long),
        pytest.param("fork_of_c", "None", marks=pytest.mark.long),
    ],
)
def test_a_child_writes_its_own_items_however_it_was_forked(fork: str, key: str) -> None:
    """batcher/4b.14: also without Python's hooks, and if other threads held every lock at the fork.
    Each call may be the first one in the child.
    """
    out = script(
        PARENT
        + f"""
    from sluicegate._core.order import keys
    from sluicegate._core.runtime import process_fork
    from sluicegate.batcher import receipt as receipts

    batcher = BlockingBatcher(Shown(), limits=Limits(max_delay=60.0), key={key})
    calls = [
        lambda: batcher.add("mine"),
        lambda: batcher.add_many(["mine"]),
        lambda: batcher.try_add("mine") or batcher.add("mine"),
        lambda: batcher.submit("mine"),
        lambda: batcher.flush(20.0),
        lambda: batcher.tally(),
        lambda: batcher.stats(),
    ]

    def child(call):
        call()
        try:
            pending.result(20.0)
        except ForkedError as error:
            assert "the parent of this forked process" in str(error)
        else:
            raise AssertionError
        mine = batcher.submit("and mine", timeout=20.0)
        assert batcher.flush(20.0).complete
        assert mine.result(20.0).value == "delivered"
        report = batcher.shutdown(20.0)
        assert report.complete and report.tally.delivered == report.tally.accepted

    held, release = threading.Event(), threading.Event()

    def holds():
        with batcher._inbox._lock, batcher._changing, receipts._JOINING, keys._lock, process_fork._noticing:
            held.set()
            release.wait(20.0)

    with batcher:
        pending = batcher.submit("before")
        holder = threading.Thread(target=holds)
        holder.start()
        held.wait(20.0)
        for call in calls:
            in_child(lambda: child(call), {fork})
        release.set()
        holder.join()
        batcher.add("after")
    """
    )
    written = ["wrote by the child mine and mine"] * 4 + ["wrote by the child and mine"] * 3
    lines = [line for each in written for line in (each, "closed by the child")]
    assert out.splitlines() == [*lines, "wrote by the parent before after", "closed by the parent"]


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="asyncio does not run in such a child: it has the parent's running loop",
)
def test_a_batcher_in_a_child_without_pythons_hooks_refuses_every_call() -> None:
    """batcher/4b.14: from the first item of a batch on, and at each wait."""
    out = script(
        PARENT
        + """
    async def refused(batcher, call):
        try:
            await call(batcher)
        except ForkedError as error:
            assert "batcher 'audit' was opened by the parent" in str(error)
            assert batcher.tally().accepted == 0 and batcher.stats().state == "forked"
        else:
            raise AssertionError

    calls = [
        lambda batcher: batcher.add(1),
        lambda batcher: batcher.add_many([1]),
        lambda batcher: batcher.submit(1),
        lambda batcher: batcher.flush(),
        lambda batcher: batcher.shutdown(),
        lambda batcher: batcher.__aenter__(),
    ]

    async def main():
        async with Batcher(Shown(), name="audit", limits=Limits(max_delay=60.0)) as batcher:
            for call in calls:
                in_child(lambda: asyncio.run(refused(batcher, call)), fork_of_c)
            await batcher.add("after")

    asyncio.run(main())
    """
    )
    assert out.splitlines() == ["wrote by the parent after", "closed by the parent"]


def test_a_batcher_for_threads_refuses_gevents() -> None:
    """Its loop would run in a greenlet of the program's only thread."""
    out = script("""
        from gevent import monkey
        monkey.patch_all()
        from sluicegate import BlockingBatcher, ConfigError

        try:
            BlockingBatcher(print, name="audit").start()
        except ConfigError as error:
            print(error)
    """)
    assert "BlockingBatcher 'audit' cannot run under gevent" in out
    assert "gunicorn -k gthread" in out
