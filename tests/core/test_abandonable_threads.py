"""Threads whose calls may wait for a silent peer. White box: the threads alone."""

from __future__ import annotations

import threading

import pytest

from sluicegate._core.runtime.threads import AbandonableThreads


def test_calls_run_and_their_errors_are_delivered() -> None:
    threads = AbandonableThreads(2, "test")
    assert threads.submit(int, "7").result(10) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        threads.submit(int, "x").result(10)
    threads.shutdown()


def test_an_end_waits_for_no_call_and_refuses_later_ones() -> None:
    """A later call would never be run, and its caller would wait for ever."""
    threads, waits, released = AbandonableThreads(1, "test"), threading.Event(), threading.Event()

    def wait() -> bool:
        waits.set()
        return released.wait(10)

    call = threads.submit(wait)
    assert waits.wait(10)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        threads.submit(int)
    released.set()
    assert call.result(10)
