"""`RedisSink` with lost replies, and with servers that are killed, frozen or refuse commands.

White box: sinks are opened and asked as the batcher does it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest
import trustme
from redis.asyncio.retry import Retry as RedisRetry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from tests.redis.proxy_help import proxied, refusing
from tests.redis.redis_help import STREAM, Store, names, written
from tests.redis_server import redis_sentinel, redis_server

from sluicegate import (
    Backoff,
    Batcher,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    RowBatch,
    UnavailableError,
    UnknownOutcomeError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.opening import opened
from sluicegate.batcher import LoopClock
from sluicegate.redis import RedisSink
from sluicegate.testing.servers.program import free_port
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate import Batch

pytestmark = pytest.mark.usefixtures("real_clock")
COUNT = 50
ANSWERED = 20
LIMIT = 1 << 20


def numbered(count: int = COUNT) -> list[dict[str, int]]:
    return [{"n": n} for n in range(1, count + 1)]


@pytest.mark.parametrize("has_ids", [False, True])
async def test_only_items_without_an_answer_are_unknown(store: Store, *, has_ids: bool) -> None:
    """batcher/4b.11: items whose reply came before the connection was lost are delivered. For the
    others, a repeated write creates second entries, or finds the first ones by their ids.
    """
    async with proxied(store.url) as proxy:
        async with store.sink(url=proxy.url, id="n" if has_ids else None) as sink:
            batch = RowBatch(numbered())
            proxy.pass_lines = 2 * ANSWERED
            errors = await send(sink, batch)
            assert {*errors} == {*range(ANSWERED, COUNT)}
            assert {*names(errors).values()} == {"UnknownOutcomeError"}
            assert store.numbers() == [*range(1, COUNT + 1)]
            assert await send(sink, batch) == {}
    unknown = [*range(ANSWERED + 1, COUNT + 1)]
    assert store.numbers() == [*range(1, COUNT + 1)] + ([] if has_ids else unknown)
    outcomes = Counter(batch.delivery.verdict(at) for at in range(COUNT))
    again = Outcome.DUPLICATE if has_ids else Outcome.DELIVERED
    assert outcomes == Counter({Outcome.DELIVERED: ANSWERED}) + Counter({again: COUNT - ANSWERED})


async def test_a_cancelled_write_books_what_has_its_answer(store: Store) -> None:
    async with proxied(store.url) as proxy, store.sink(url=proxy.url) as sink:
        batch = RowBatch(numbered())
        proxy.pass_lines, proxy.is_silent = 2 * ANSWERED, True
        write = asyncio.create_task(send(sink, batch))
        await proxy.cut.wait()
        await LoopClock().sleep(0.02)
        write.cancel()
        await asyncio.wait([write])
        assert write.cancelled()
        assert [at for at in range(COUNT) if batch.delivery.is_settled(at)] == [*range(ANSWERED)]


async def test_an_entry_with_other_fields_under_the_id_is_no_duplicate(store: Store) -> None:
    """Of an earlier item of the batch, and of another writer."""
    async with proxied(store.url) as proxy, store.sink(url=proxy.url, id="id") as sink:
        batch = RowBatch([{"id": f"{at}-0", "n": n} for at, n in [(5, 1), (5, 2), (5, 1), (7, 3)]])
        proxy.pass_lines = 0
        assert {*names(await send(sink, batch)).values()} == {"UnknownOutcomeError"}
        assert names(await send(sink, batch)) == dict.fromkeys((1, 2), "KeyRepeated")
        told, never = Outcome.DUPLICATE, Outcome.REJECTED
        assert [batch.delivery.verdict(at) for at in range(4)] == [told, never, never, told]
        store.client.xadd(STREAM, {"n": 4}, id="9-0")
        other = RowBatch([{"id": "9-0", "n": 5}])
        other.delivery.doubt([0])
        assert names(await send(sink, other)) == {0: "StoredRowDiffers"}
        assert other.delivery.verdict(0) is Outcome.UNKNOWN
    assert store.numbers() == [1, 3, 4]


async def test_an_id_that_is_not_complete_cannot_be_looked_up(store: Store) -> None:
    """After a lost reply the entry may exist under any number."""
    async with proxied(store.url) as proxy, store.sink(url=proxy.url, id="id") as sink:
        batch = RowBatch([{"id": "5-*", "n": 1}])
        proxy.pass_lines = 0
        assert names(await send(sink, batch)) == {0: "UnknownOutcomeError"}
        store.client.xadd(STREAM, {"n": 2}, id="6-0")
        assert names(await send(sink, batch)) == {0: "UnverifiableError"}
    assert store.numbers() == [1, 2]


async def test_an_entry_that_was_removed_meanwhile_stays_unknown(store: Store) -> None:
    """Trimming removed it, so the outcome cannot be determined; an unrelated entry is not mistaken
    for it.
    """
    async with proxied(store.url) as proxy:
        async with store.sink(url=proxy.url, id="n") as sink:
            batch = RowBatch(numbered(3))
            proxy.pass_lines = 2
            assert names(await send(sink, batch)) == dict.fromkeys((1, 2), "UnknownOutcomeError")
            store.client.xdel(STREAM, "2-0", "3-0")
            assert names(await send(sink, batch)) == dict.fromkeys((1, 2), "UnverifiableError")
    assert store.numbers() == [1]


async def test_a_lookup_without_an_answer_is_made_again(store: Store) -> None:
    """An entry that was not found has no outcome."""
    async with proxied(store.url) as proxy:
        async with store.sink(url=proxy.url, id="n", on_conflict="ignore") as sink:
            assert await written(sink, numbered(3)) == {}
            batch = RowBatch(numbered(3))
            proxy.pass_lines = 3  # the refusals
            assert {*names(await send(sink, batch)).values()} == {"UnknownOutcomeError"}
            assert await send(sink, batch) == {}
    assert store.numbers() == [1, 2, 3]


async def test_an_entry_of_the_same_id_with_other_fields_is_refused(store: Store) -> None:
    async with store.sink(id="n", on_conflict="ignore") as sink:
        assert await written(sink, [{"n": 5, "of": "others"}]) == {}
        assert await written(sink, [{"n": 5, "of": "others"}]) == {}
        errors = await written(sink, [{"n": 5, "of": "ours"}, {"n": 4}, {"n": 6}])
    assert names(errors) == {0: "PermanentError", 1: "PermanentError"}
    assert "that entry is different" in str(errors[0])
    assert store.numbers() == [5, 6]


async def test_a_lost_part_leaves_later_parts_unsent(store: Store) -> None:
    """They are tried again without a second entry."""
    items = [{"n": n, "filling": "x" * 600_000} for n in range(4)]
    async with proxied(store.url) as proxy, store.sink(url=proxy.url) as sink:
        batch = RowBatch(items)
        proxy.pass_lines = 3
        assert names(await send(sink, batch)) == {
            1: "UnknownOutcomeError",
            2: "UnavailableError",
            3: "UnavailableError",
        }
        assert store.numbers() == [0, 1]
        assert await send(sink, batch) == {}
    assert store.numbers() == [0, 1, 1, 2, 3]


async def test_a_value_over_the_limit_of_the_server_fails_alone(own_store: Store) -> None:
    """The limit is read when the sink is opened."""
    own_store.client.config_set("proto-max-bulk-len", "1mb")
    items = [{"n": n, "data": "x" * (n % 2 * LIMIT + n % 2)} for n in range(8)]
    async with own_store.sink() as sink:
        assert names(await written(sink, items)) == dict.fromkeys((1, 3, 5, 7), "TooLargeError")
    assert len(own_store.entries()) == 4


@pytest.mark.parametrize("size", [LIMIT + 1, 32 << 20])
async def test_a_limit_that_was_lowered_meanwhile_leaves_the_others_alone(
    own_store: Store, size: int
) -> None:
    """Redis refuses the value by its length, and closes the connection; its reply may be lost."""
    async with own_store.sink() as sink:
        own_store.client.config_set("proto-max-bulk-len", "1mb")
        large = [{"n": n, "data": "x" * size} for n in (2, 3)]
        errors = names(await written(sink, [{"n": 1}, *large, {"n": 4}]))
    if errors[1] == "TooLargeError":
        assert errors.keys() <= {1, 2, 3}
    else:
        assert errors == {1: "UnknownOutcomeError", 2: "UnavailableError", 3: "UnavailableError"}
    assert own_store.numbers() in ([1], [1, 4])


async def test_nothing_is_executed_after_a_protocol_error() -> None:
    """The connection ends with it, so the later items of the exchange were not stored."""
    told = "ERR Protocol error: invalid bulk length"
    async with refusing(told, closes=True) as url, RedisSink(url, stream=STREAM) as sink:
        errors = await written(sink, [{"n": 1}, {"n": 2}, {"n": 3}])
    assert names(errors) == {0: "TooLargeError", 1: "TransientError", 2: "TransientError"}


async def test_a_server_that_is_down_takes_nothing(own_store: Store) -> None:
    """Nothing was sent; connections are made again when the server is back."""
    async with own_store.sink(pool_size=2) as sink:
        assert await written(sink, [{"n": 1}]) == {}
        await asyncio.to_thread(own_store.server.kill)
        errors = await written(sink, [{"n": 2}, {"n": 3}])
        assert {*names(errors).values()} == {"UnavailableError"}
        with pytest.raises(UnavailableError):
            await own_store.sink().__aenter__()
        own_store.server.start()
        assert await written(sink, [{"n": 4}]) == {}
    assert own_store.numbers() == [1, 4]


class Watched:
    """A sink around another one that records the items with an unknown outcome."""

    def __init__(self, inner: RedisSink) -> None:
        self.inner = inner
        self.unknown: set[int] = set()

    async def write(self, batch: Batch[Any]) -> WriteResult:
        errors = await send(self.inner, batch)
        self.unknown |= {
            batch[index]["n"]
            for index, error in errors.items()
            if isinstance(error, UnknownOutcomeError)
        }
        return WriteResult.failed(batch, errors)


async def under_load(store: Store, trouble: Callable[[], None], **options: Any) -> set[int]:
    """Write 4,000 items while the server fails twice; return the items that once had an unknown
    outcome.
    """
    total = 4_000
    inner = store.sink(timeout=0.2, **options)
    watched = Watched(inner)
    retry = Retry(attempts=50, backoff=Backoff(base=0.02, jitter="none"))
    workers = inner.capabilities.max_concurrency or 1
    limits = Limits(max_items=50, max_delay=0.01, workers=min(workers, 4))
    receipts: list[Any] = []
    async with opened(inner), Batcher(stack(watched, retry), limits=limits) as batcher:

        async def produce() -> None:
            for n in range(1, total + 1):
                receipts.append(await batcher.submit({"n": n}))
                if n % 20 == 0:
                    await LoopClock().sleep(0.001)

        producing = asyncio.create_task(produce())
        for least in (800, 2_400):
            while sum(receipt.done for receipt in receipts[:least]) < least:
                await LoopClock().sleep(0.01)
            await asyncio.to_thread(trouble)
        await producing
        outcomes = [await receipt.settled() for receipt in receipts]
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    return watched.unknown


def checked(found: list[int], unknown: set[int]) -> None:
    """Check that nothing is lost, and that only items with an unknown attempt are duplicated."""
    counts = Counter(found)
    assert {*counts} == {*range(1, 4_001)}
    assert {n for n, count in counts.items() if count > 1} <= unknown


@pytest.mark.parametrize("has_ids", [False, True])
async def test_a_server_that_is_killed_under_load(own_store: Store, *, has_ids: bool) -> None:
    def kill() -> None:
        own_store.server.kill()
        own_store.server.start()

    unknown = await under_load(own_store, kill, id="n" if has_ids else None)
    found = own_store.numbers()
    checked(found, unknown)
    if has_ids:
        assert found == [*range(1, 4_001)]


@pytest.mark.parametrize("has_ids", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_server_that_is_frozen_under_load(own_store: Store, *, has_ids: bool) -> None:
    """It executes the received commands when it resumes."""

    def freeze() -> None:
        own_store.server.pause()
        asyncio.run_coroutine_threadsafe(LoopClock().sleep(0.6), loop).result()
        own_store.server.resume()

    loop = asyncio.get_running_loop()
    unknown = await under_load(own_store, freeze, id="n" if has_ids else None)
    assert unknown
    found = own_store.numbers()
    checked(found, unknown)
    if has_ids:
        assert found == [*range(1, 4_001)]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", "UnavailableError"),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "UnavailableError"),
        ("MASTERDOWN Link with MASTER is down", "UnavailableError"),
        ("CLUSTERDOWN The cluster is down", "UnavailableError"),
        ("NOREPLICAS Not enough good replicas to write.", "UnavailableError"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "UnavailableError"),
        ("READONLY You can't write against a read only replica.", "RefusedError"),
        ("MOVED 3999 127.0.0.1:6381", "RefusedError"),
        ("ASK 3999 127.0.0.1:6381", "RefusedError"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "RefusedError"),
        ("MISCONF Redis is configured to save RDB snapshots", "RefusedError"),
        ("NOAUTH Authentication required.", "RefusedError"),
        ("NOPERM this user has no permissions to run the 'xadd' command", "RefusedError"),
        ("WRONGTYPE Operation against a key", "RefusedError"),
        ("ERR unknown command 'XADD', with args beginning with: 'very secret'", "RefusedError"),
        ("ERR max daily request limit exceeded. Limit: 10000, Usage: 10000", "RefusedError"),
        ("no upstream host", "RefusedError"),
        ("ERR string exceeds maximum allowed size (proto-max-bulk-len)", "PermanentError"),
    ],
)
async def test_what_redis_answers_is_the_error_of_each_item(answer: str, kind: str) -> None:
    """All replies are read, whatever the first one is; no outcome is unknown."""
    async with refusing(answer) as url, RedisSink(url, stream=STREAM) as sink:
        errors = await written(sink, [{"n": 1}, {"n": 2}])
    assert names(errors) == dict.fromkeys((0, 1), kind)
    assert answer.partition(" ")[0] in str(errors[0])
    assert "secret" not in str(errors[0])
    if kind == "RefusedError":
        assert isinstance(errors[0], RefusedError)
        assert errors[0].repair


async def test_a_server_that_may_evict_the_stream_is_warned_of(
    own_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """No warning without a limit, if only keys with an expiry are evicted, or without permission to
    read the setting.
    """
    client = own_store.client
    client.acl_setuser("writer", enabled=True, passwords=["+pw"], commands=["+xadd"])
    for policy, limit, is_warned in (
        ("allkeys-lru", "100mb", True),
        ("volatile-lru", "100mb", False),
        ("allkeys-lru", "0", False),
    ):
        client.config_set("maxmemory", limit)
        client.config_set("maxmemory-policy", policy)
        caplog.clear()
        async with own_store.sink():
            pass
        assert (f"maxmemory-policy {policy}" in caplog.text) is is_warned
    client.config_set("maxmemory", "100mb")
    async with own_store.sink(url=own_store.url.replace("redis://", "redis://writer:pw@")):
        assert not caplog.records


async def test_a_server_without_its_replicas_is_waited_for(own_store: Store) -> None:
    async with own_store.sink() as sink:
        own_store.client.config_set("min-replicas-to-write", 1)
        assert names(await written(sink, [{"n": 1}])) == {0: "UnavailableError"}
        own_store.client.config_set("min-replicas-to-write", 0)
        assert await written(sink, [{"n": 2}]) == {}


async def test_a_replica_in_place_of_its_master_is_refused(own_store: Store) -> None:
    """A new connection is made, because the name may resolve to the new master then."""
    async with own_store.sink(pool_size=1) as sink:
        before = own_store.client.client_list()
        own_store.client.replicaof("127.0.0.1", 1)
        errors = await written(sink, [{"n": 1}])
        own_store.client.replicaof("NO", "ONE")
        assert await written(sink, [{"n": 2}]) == {}
        after = own_store.client.client_list()
    assert names(errors) == {0: "RefusedError"}
    assert {each["id"] for each in after} != {each["id"] for each in before}


async def test_a_master_of_sentinel_that_becomes_a_replica_is_waited_for(own_store: Store) -> None:
    """redis-py would end the connection at the first refusal and leave all other items unknown."""
    with redis_sentinel(own_store.server) as sentinel:
        asked: Any = cast("Any", Sentinel)([("127.0.0.1", sentinel.port)])

        def master() -> Any:
            return asked.master_for("main", retry=RedisRetry(NoBackoff(), 0))

        async with RedisSink(client=master, stream=STREAM) as sink:
            assert await written(sink, numbered(3)) == {}
            own_store.client.replicaof("127.0.0.1", 1)
            errors = await written(sink, numbered(3))
            own_store.client.replicaof("NO", "ONE")
            assert names(errors) == dict.fromkeys(range(3), "RefusedError")
            assert await written(sink, [{"n": 4}]) == {}
        for each in asked.sentinels:
            await each.aclose()
    assert own_store.numbers() == [1, 2, 3, 4]


async def test_a_connection_that_was_closed_while_idle_is_made_anew(store: Store) -> None:
    """Nothing is sent over the old connection."""
    async with store.sink(pool_size=1) as sink:
        assert await written(sink, [{"n": 1}]) == {}
        store.client.client_kill_filter(_type="normal", skipme=True)
        await LoopClock().sleep(0.02)
        assert await written(sink, [{"n": 2}]) == {}
    assert store.numbers() == [1, 2]


async def test_a_certificate_that_is_not_trusted_is_refused(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "s.pem"
    )
    port = free_port()
    options = {
        "tls-port": str(port),
        "tls-auth-clients": "no",
        **dict.fromkeys(("tls-cert-file", "tls-key-file"), str(tmp_path / "s.pem")),
        "tls-ca-cert-file": str(tmp_path / "ca.pem"),
    }
    with there_or_skip("redis", redis_server(**options)) as server:
        store, url = Store(server), f"rediss://localhost:{port}"
        with pytest.raises(RefusedError, match="trust the server's certificate"):
            await store.sink(url=url).__aenter__()
        trusting = {"ssl_ca_certs": str(tmp_path / "ca.pem")}
        async with store.sink(url=url, client_options=trusting) as sink:
            assert await written(sink, [{"n": 1}]) == {}
        assert store.numbers() == [1]


async def test_a_node_of_a_cluster_is_told() -> None:
    options = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with there_or_skip("redis", redis_server(**options)) as server:
        async with Store(server).sink() as sink:
            assert names(await written(sink, [{"n": 1}])) == {0: "UnavailableError"}


async def test_a_server_that_runs_a_script_is_waited_for(own_store: Store) -> None:
    own_store.client.config_set("busy-reply-threshold", 50)
    script = "while true do end"
    async with own_store.sink() as sink:
        running = asyncio.create_task(
            asyncio.to_thread(_ignoring, own_store.client.eval, script, 0)
        )
        with Store.beside(own_store) as client:
            errors: dict[int, BaseException] = {}
            while not errors:  # the script begins in a thread
                errors = await written(sink, [{"n": 1}])
            client.script_kill()
        await running
    assert names(errors) == {0: "UnavailableError"}


async def test_too_many_clients_are_waited_for(own_store: Store) -> None:
    own_store.client.config_set("maxclients", 1)
    with pytest.raises(UnavailableError):
        await own_store.sink().__aenter__()
    own_store.client.config_set("maxclients", 100)
    async with own_store.sink() as sink:
        assert await written(sink, [{"n": 1}]) == {}


def _ignoring(call: Any, *args: Any) -> None:
    try:
        call(*args)
    except Exception as error:
        assert "killed" in str(error).lower()  # noqa: PT017
