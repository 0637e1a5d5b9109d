"""A `BlockingBatcher` at the exit of its process, and in forked children."""

from __future__ import annotations

import pytest
from process_help import script


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_it_is_drained_at_the_interpreters_exit(kind: str) -> None:
    """design 4. A plain function still gets a thread to write in."""
    out = script(f"""
        from sluicegate import BlockingBatcher, Limits

        {kind} write(batch):
            print("wrote", len(batch), batch.reason.value)

        batcher = BlockingBatcher(write, limits=Limits(max_delay=60.0)).start()
        for item in range(7):
            batcher.add(item)
    """)
    assert out == "wrote 7 shutdown\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="nothing forks here")
def test_a_forked_child_starts_empty() -> None:
    """batcher/4b.14: pending items belong to the parent, which continues; the child has its own
    tally.
    """
    out = script("""
        import os, threading, warnings
        from sluicegate import BlockingBatcher, Limits

        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads running: that is the point

        async def write(batch):
            print("parent" if os.getpid() == parent else "child", "wrote", *batch, flush=True)

        parent = os.getpid()
        batcher = BlockingBatcher(write, limits=Limits(max_delay=60.0))
        with batcher:
            batcher.add("before")
            child = os.fork()
            if child == 0:
                assert batcher.tally().accepted == 0
                batcher.add("of the child")
                assert batcher.try_add("of the child")
                report = batcher.shutdown()
                report.verify()
                assert report.tally.delivered == 2
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            idle = os.fork()
            if idle == 0:
                assert batcher.shutdown().tally.accepted == 0
                os._exit(0)
            assert os.waitpid(idle, 0)[1] == 0
            batcher.add("after")
        assert batcher.report.tally.delivered == 2
    """)
    assert out == "child wrote of the child of the child\nparent wrote before after\n"


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="nothing forks here")
def test_a_child_of_multiprocessing_drains_at_its_exit() -> None:
    """batcher/4b.14: its exit stops threads as the interpreter's does."""
    out = script("""
        import multiprocessing, os, warnings
        from sluicegate import BlockingBatcher, Limits

        warnings.simplefilter("ignore", DeprecationWarning)

        def write(batch):
            print(len(batch), "items", flush=True)

        batcher = BlockingBatcher(write, limits=Limits(max_delay=60.0)).start()

        def work():
            for item in range(3):
                batcher.add(item)

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        assert child.exitcode == 0
        batcher.add("of the parent")
    """)
    assert out == "3 items\n1 items\n"
