"""The situations: each drives a scene, and describes the result in one line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .scene import times_ended

if TYPE_CHECKING:
    from .scene import Event, Process, Scene

STUCK = 600.0
"""Seconds of a hanging message."""
SECOND = 1
"""The number of the second process."""


def _m(n: int, seconds: float = 0.005, fails: str = "") -> dict[str, object]:
    return {"n": n, "seconds": seconds, "fails": fails}


def _fails(process: Process) -> int:
    return len(process.events("fail"))


def failed(scene: Scene) -> str:
    """Message 3 of 10 always fails, each has its own key; after 12 s kill -9, and a repaired process."""
    scene.produce((f"k{n}", _m(n, fails="always" if n == 3 else "")) for n in range(10))
    first = scene.start()
    scene.wait(lambda: _fails(first))
    time.sleep(12)
    state = "runs" if first.is_up else "has ended"
    committed, done, tries = scene.committed(), sorted(times_ended(first)), _fails(first)
    first.kill()
    second = scene.start(FIXED="1")
    scene.wait(lambda: times_ended(second), 20)
    time.sleep(4)
    again = sorted(times_ended(second))
    lost = sorted(set(range(10)) - {*done, *again})
    return (
        f"{state}, {tries} tries; handled {done}; committed {committed}; "
        f"the repaired process handles {again}; never handled: {lost}"
    )


def replay(scene: Scene) -> str:
    """Message 50 of 2,000 hangs, 200 keys, others take 5 ms; kill -9 after 20 s, then a repaired process."""
    scene.produce((f"k{n % 200}", _m(n, STUCK if n == 50 else 0.005)) for n in range(2_000))
    first = scene.start()
    scene.wait(first.events)
    time.sleep(20)
    committed, done = scene.committed(), set(times_ended(first))
    first.kill()
    second = scene.start(FIXED="1")
    scene.wait(lambda: times_ended(second), 30)
    scene.wait(lambda: len(done | set(times_ended(second))) == 2_000, 20)
    time.sleep(3)
    again = set(times_ended(second))
    return (
        f"handled behind it: {len(done)}; committed {committed}; after the restart handled "
        f"{len(again)}, of them again {len(done & again)}; never handled: {2_000 - len(done | again)}"
    )


def bound(scene: Scene) -> str:
    """Every one of 100,000 messages (1 KB, 1,000 keys) hangs, 25 s: handlers begun, and memory."""
    scene.produce(((f"k{n % 1000}", _m(n, STUCK)) for n in range(100_000)), padding=1_000)
    process = scene.start()
    scene.wait(process.events)
    begin = process.megabytes()
    time.sleep(25)
    starts = len(process.events("start"))
    return f"begun {starts}; memory {begin} MB, 25 s later {process.megabytes()} MB"


def rebalance(scene: Scene) -> str:
    """3,000 messages, 24 keys, 6 partitions, 50 to 900 ms, 60 s; a second member joins, and leaves (SIGTERM)."""
    count, begin = 3_000, time.monotonic()
    scene.produce((f"k{n % 24}", _m(n, 0.9 if n % 7 == 0 else 0.05)) for n in range(count))
    alone = (
        {"CONCURRENCY": "1"} if scene.peer.name == "Faust" else {}
    )  # more of them lose the order
    first = scene.start(**alone)
    scene.wait(first.events)
    time.sleep(4)
    second = scene.start(**alone)
    scene.wait(second.events, 20)
    time.sleep(5)
    took = second.stop()
    gone = time.time()
    scene.wait(lambda: len(times_ended(first, second)) == count, 60 - (time.monotonic() - begin))
    time.sleep(2)
    counts, committed = times_ended(first, second), scene.committed()
    overlaps, inversions = _disorder(first.events(), second.events(), gone)
    return (
        f"handled {len(counts)} of {count}, committed {committed}, {len(times_ended(second))} by the "
        f"second, which stopped in {took:.1f} s; twice: {sum(n > 1 for n in counts.values())}; begun "
        f"while its key ran: {overlaps}; begun after a later one of its key: {inversions}"
    )


def _disorder(first: list[Event], second: list[Event], gone: float) -> tuple[int, int]:
    """Count how often a message was begun while its key ran, and after a later one of its key. The
    second process ended at `gone`.
    """
    running: dict[str, set[tuple[int, int]]] = {}
    seen: dict[str, int] = {}
    overlaps = inversions = 0
    for each in sorted(first + second):
        of_key = running.setdefault(each.key, set())
        if each.time > gone:
            of_key -= {(process, n) for process, n in of_key if process == SECOND}
        if each.what == "start":
            overlaps += bool(of_key)
            of_key.add((each.process, each.n))
            inversions += each.n < seen.get(each.key, -1)
            seen[each.key] = max(seen.get(each.key, -1), each.n)
        elif each.what in {"end", "fail", "cut"}:
            of_key.discard((each.process, each.n))
    return overlaps, inversions


def drain(scene: Scene) -> str:
    """20 messages of 20 keys, 2 s each, SIGTERM 1 s after the first began; then another process."""
    scene.produce((f"k{n}", _m(n, 2.0)) for n in range(20))
    first = scene.start(CONCURRENCY="4") if scene.peer.name != "aiokafka" else scene.start()
    scene.wait(first.events)
    time.sleep(1)
    running = len(first.events("start"))
    took = first.stop()
    done, committed = set(times_ended(first)), scene.committed()
    begun = {each.n for each in first.events("start")}
    second = scene.start(FIXED="1")
    scene.wait(lambda: times_ended(second), 30)
    time.sleep(4)
    again = set(times_ended(second))
    return (
        f"running {running}; ended in {took:.1f} s with {len(done)} of {len(begun)} begun handled, "
        f"committed {committed}; handled again: {len(done & again)}; "
        f"never handled: {20 - len(done | again)}"
    )


def batches(scene: Scene) -> str:
    """Batches of 10 of 30 messages, one key each; message 13 always fails; after 15 s a repaired process."""
    scene.produce((f"k{n}", _m(n, fails="always" if n == 13 else "")) for n in range(30))
    first = scene.start(BATCH="10")
    scene.wait(lambda: _fails(first))
    time.sleep(15)
    state, counts = "runs" if first.is_up else "has ended", times_ended(first)
    committed, tries = scene.committed(), _fails(first)
    first.kill()
    second = scene.start(FIXED="1", BATCH="10")
    scene.wait(lambda: times_ended(second), 20)
    time.sleep(4)
    lost = sorted(set(range(30)) - set(counts) - set(times_ended(second)))
    return (
        f"{state}, 13 tried {tries} times; handled {len(counts)} of 29 good ones, of them more than "
        f"once {sum(count > 1 for count in counts.values())} (at most {max(counts.values(), default=0)} "
        f"times); committed {committed}; never handled after the repair: {lost}"
    )


SITUATIONS = {
    "failed": (1, failed),
    "replay": (1, replay),
    "bound": (1, bound),
    "rebalance": (6, rebalance),
    "drain": (1, drain),
    "batches": (1, batches),
}
