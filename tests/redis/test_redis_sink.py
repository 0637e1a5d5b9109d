"""`RedisSink`: the stored form of an item, trimming, ids, refusals, and repr."""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
import redis.asyncio as redis_asyncio
from tests.redis.redis_help import STREAM, Store, names, written

from sluicegate import (
    Batcher,
    ClosedError,
    ConfigError,
    Limits,
    Outcome,
    RefusedError,
    Retry,
    RowBatch,
    send,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.redis import RedisSink

pytestmark = pytest.mark.usefixtures("real_clock")


@dataclass
class Order:
    number: int
    note: str | None = None


@pytest.mark.parametrize(
    ("options", "item", "fields"),
    [
        (
            {},
            {"a": 1, "b": "ä", "c": b"\x00\xff"},
            {b"a": b"1", b"b": "ä".encode(), b"c": b"\x00\xff"},
        ),
        ({}, {"a": None, "b": True, "c": [1, None]}, {b"b": b"true", b"c": b"[1,null]"}),
        (
            {},
            {"d": dt.date(2026, 1, 31), "e": Decimal("1.50")},
            {b"d": b"2026-01-31", b"e": b"1.50"},
        ),
        ({}, Order(7), {b"number": b"7"}),
        ({}, "text", {b"value": b"text"}),
        ({}, b"\x00\r\n\xff", {b"value": b"\x00\r\n\xff"}),
        ({}, [1, 2], {b"value": b"[1,2]"}),
        ({"fields": ["number"]}, Order(7, "n"), {b"number": b"7"}),
        ({"fields": lambda order: {"x": order.number}}, Order(7), {b"x": b"7"}),
        ({"encode": lambda item: item["a"].upper()}, {"a": "b"}, {b"value": b"B"}),
    ],
)
async def test_the_fields_of_an_entry(
    store: Store, options: dict[str, Any], item: Any, fields: dict[bytes, bytes]
) -> None:
    async with store.sink(**options) as sink:
        assert await written(sink, [item]) == {}
    assert [found for _, found in store.entries()] == [fields]


async def test_an_item_without_an_entry_fails_alone(store: Store) -> None:
    """No field, an unsupported value, text that is not UTF-8, an invalid name."""
    items = [{"n": 1}, {}, {"n": None}, {"n": object()}, {"n": "\ud800"}, {"n": float("nan")}, 5]
    async with store.sink() as sink:
        errors = await written(sink, [*items, {"n": 2}])
    assert names(errors) == dict.fromkeys(range(1, 6), "PermanentError")
    assert len(store.entries()) == 3
    async with store.sink(stream_field="to") as sink:
        errors = await written(sink, [{"to": "a", "n": 1}, {"n": 2}, {"to": "", "n": 3}, {"to": 4}])
    assert names(errors) == dict.fromkeys((1, 2, 3), "PermanentError")
    assert store.numbers("a") == [1]


async def test_an_entry_has_its_id_as_the_detail_of_its_receipt(store: Store) -> None:
    async with (
        store.sink() as sink,
        Batcher(sink, limits=Limits(max_items=3, max_delay=0.01)) as batcher,
    ):
        receipts = [await batcher.submit({"n": n}) for n in range(3)]
        assert [await receipt for receipt in receipts] == [Outcome.DELIVERED] * 3
    assert [receipt.detail for receipt in receipts] == [entry for entry, _ in store.entries()]


async def test_a_stream_is_trimmed_by_its_length(store: Store) -> None:
    """Exactly, or by whole nodes of 100 entries."""
    items = [{"n": n} for n in range(1_000)]
    async with store.sink(maxlen=150, approximate=False) as sink:
        assert await written(sink, items) == {}
    assert store.numbers() == [*range(850, 1_000)]
    async with store.sink(stream="other", maxlen=150) as sink:
        assert await written(sink, items) == {}
    assert 150 <= len(store.entries("other")) <= 300


async def test_a_stream_is_trimmed_by_age(store: Store) -> None:
    now = LoopClock().wall_time()
    items = [{"n": n, "ms": int(1000 * (now - 3600 * (10 - n)))} for n in range(10)]
    options: dict[str, Any] = {"id": "ms", "max_age": dt.timedelta(hours=3.5)}
    async with store.sink(approximate=False, **options) as sink:
        assert await written(sink, items) == {}
    assert store.numbers() == [7, 8, 9]


async def test_a_stream_that_does_not_exist_is_not_created_unless_allowed(store: Store) -> None:
    async with store.sink(create=False) as sink:
        with pytest.raises(RefusedError, match="create the stream"):
            await sink.write(RowBatch([{"n": 1}, {"n": 2}]))
        store.client.xadd(STREAM, {"n": 0})
        assert await written(sink, [{"n": 1}]) == {}
    assert store.numbers() == [0, 1]


# -- ids -------------------------------------------------------------------------------------------


async def test_ids_have_several_forms(store: Store) -> None:
    given: list[Any] = [5, "6", "6-7", b"7-0", "8-*", "8-*", None, "*"]
    async with store.sink(id="id", fields=["n"]) as sink:
        assert await written(sink, [{"id": each, "n": n} for n, each in enumerate(given)]) == {}
        bad: list[Any] = ["x", "1-", -1, 1.5, True, "1-2-3", "9" * 30, "1\r\n"]
        errors = await written(sink, [{"id": each, "n": 0} for each in bad])
    assert names(errors) == dict.fromkeys(range(len(bad)), "PermanentError")
    ids = [entry for entry, _ in store.entries()]
    assert ids[:6] == ["5-0", "6-0", "6-7", "7-0", "8-0", "8-1"]
    assert len(ids) == 8


async def test_an_id_that_is_too_low_fails_alone(store: Store) -> None:
    """It was not an attempt of this sink, so the entry is not looked up."""
    async with store.sink(id="n") as sink:
        errors = await written(sink, [{"n": 5}, {"n": 5}, {"n": 4}, {"n": 6}])
    assert names(errors) == {1: "PermanentError", 2: "PermanentError"}
    assert store.numbers() == [5, 6]


async def test_ids_that_are_not_complete_cannot_be_known(store: Store) -> None:
    async with store.sink(id="id", on_conflict="ignore") as sink:
        errors = await written(sink, [{"id": "5-*"}, {"id": None}, {"id": "*"}, {"id": "5-0"}])
    assert names(errors) == dict.fromkeys((0, 1, 2), "PermanentError")


def test_writes_with_ids_go_one_after_another() -> None:
    """Two concurrent writes would overtake each other; several streams may."""
    kept = RedisSink("redis://h", stream=STREAM, id="n").capabilities
    assert (kept.max_concurrency, kept.idempotent) == (1, False)
    assert kept.several_destinations, "a retry that searches for an item at fault changes the order"
    assert not RedisSink("redis://h", stream=STREAM).capabilities.several_destinations
    known = RedisSink("redis://h", stream_field="s", id="n", on_conflict="ignore").capabilities
    assert (known.max_concurrency, known.idempotent) == (10, True)


@pytest.mark.parametrize("argument", ["key", "tenant"])
def test_ids_of_a_stream_are_refused_with_keys(argument: str) -> None:
    """Items of other keys would overtake those in a backoff, whose ids would then be too low."""
    options: dict[str, Any] = {argument: lambda item: item["n"]}
    kept = stack(RedisSink("redis://h", stream=STREAM, id="n"), Retry())
    with pytest.raises(ConfigError, match=rf"{argument}=.*RedisSink.*must increase over all items"):
        Batcher(kept, **options)
    others: list[dict[str, Any]] = [
        {"stream": STREAM},
        {"stream_field": "s", "id": "n"},
    ]
    for other in others:
        Batcher(RedisSink("redis://h", **other), **options)
    Batcher(kept)


async def test_nothing_is_stored_behind_a_failed_item_of_its_key(store: Store) -> None:
    """Redis refuses the second item of each key: its name belongs to another type."""
    store.client.set("taken", "text")
    order = [("a", "x"), ("b", "x"), ("a", "taken"), ("a", "x"), ("b", "x"), ("a", "y"), ("c", "y")]
    items = [{"n": n, "key": key, "to": to} for n, (key, to) in enumerate(order)]
    async with store.sink(stream_field="to", fields=["n"]) as sink:
        errors = await written(sink, items, keys=[item["key"] for item in items])
    assert names(errors) == {2: "RefusedError", 3: "KeyStopped", 5: "KeyStopped"}
    assert {name: store.numbers(name) for name in ("x", "y")} == {"x": [0, 1, 4], "y": [6]}


async def test_ids_keep_their_order_over_keys(store: Store) -> None:
    """Items of one key are sent one after another, and other items do not overtake them."""
    keys = [*"aabaccbdaa"]
    async with store.sink(id="n") as sink:
        assert await written(sink, [{"n": n + 1} for n in range(len(keys))], keys=keys) == {}
    assert store.numbers() == [*range(1, 11)]


# -- refusals --------------------------------------------------------------------------------------


async def test_a_key_of_another_type_is_refused(store: Store) -> None:
    """All items if the name is fixed; with several names, only the items of that name."""
    store.client.set(STREAM, "text")
    async with store.sink() as sink:
        with pytest.raises(RefusedError, match="WRONGTYPE") as caught:
            await sink.write(RowBatch([{"n": 1}, {"n": 2}]))
        assert not caught.value.of_item
        store.client.delete(STREAM)
        assert await written(sink, [{"n": 1}]) == {}
    store.client.set("text", "text")
    async with store.sink(stream_field="to") as sink:
        errors = await written(
            sink, [{"to": "a", "n": 1}, {"to": "text", "n": 2}, {"to": "a", "n": 3}]
        )
    assert names(errors) == {1: "RefusedError"}
    assert isinstance(errors[1], RefusedError)
    assert errors[1].of_item
    assert store.numbers("a") == [1, 3]


async def test_a_stream_without_ids_left_is_refused(store: Store) -> None:
    """No item is to blame for an entry that another writer has stored under the last id."""
    last = (1 << 64) - 1
    store.client.xadd(STREAM, {"n": 0}, id=f"{last}-{last}")
    async with store.sink() as sink:
        errors = await written(sink, [{"n": 1}, {"n": 2}])
        assert {*names(errors).values()} == {"RefusedError"}
        assert "another name" in str(errors[0])
        store.client.delete(STREAM)
        assert await written(sink, [{"n": 1}]) == {}
    assert store.numbers() == [1]


async def test_a_full_memory_is_refused_until_there_is_room(own_store: Store) -> None:
    async with own_store.sink() as sink:
        own_store.client.config_set("maxmemory", "100kb")
        errors = await written(sink, [{"n": n} for n in range(10)])
        assert {*names(errors).values()} == {"RefusedError"}
        assert "maxmemory" in str(errors[0])
        own_store.client.config_set("maxmemory", "0")
        assert await written(sink, [{"n": n} for n in range(10)]) == {}
    assert own_store.numbers() == [*range(10)]


async def test_a_user_without_the_right_is_refused_until_it_has_it(store: Store) -> None:
    """The login succeeds, but a command does not."""
    store.client.acl_setuser("clerk", reset=True, enabled=True, passwords=["+pw"], keys=["other"])
    url = store.url.replace("//", "//clerk:pw@")
    async with store.sink(url=url) as sink:
        for categories, keys in (("-@all", ["other"]), ("+@all", ["other"])):
            store.client.acl_setuser(
                "clerk", enabled=True, passwords=["+pw"], categories=[categories], keys=keys
            )
            errors = await written(sink, [{"n": 1}, {"n": 2}])
            assert {*names(errors).values()} == {"RefusedError"}
            assert "ACL SETUSER" in str(errors[0])
        store.client.acl_setuser(
            "clerk", enabled=True, categories=["-@all"], commands=["+xadd"], keys=[STREAM]
        )
        assert await written(sink, [{"n": 1}, {"n": 2}]) == {}
    assert store.numbers() == [1, 2]


async def test_a_lookup_that_is_not_allowed_waits_for_the_right(store: Store) -> None:
    rights: dict[str, Any] = {"enabled": True, "passwords": ["+pw"], "keys": [STREAM]}
    store.client.acl_setuser("blind", reset=True, commands=["+xadd"], **rights)
    url = store.url.replace("//", "//blind:pw@")
    async with store.sink(url=url, id="n", on_conflict="ignore") as sink:
        assert await written(sink, [{"n": 1}]) == {}
        assert names(await written(sink, [{"n": 1}, {"n": 2}])) == {0: "RefusedError"}
        store.client.acl_setuser("blind", commands=["+xrange"], **rights)
        assert await written(sink, [{"n": 1}, {"n": 2}]) == {}
    assert store.numbers() == [1, 2]


async def test_a_wrong_or_missing_password_is_refused_when_opening(own_store: Store) -> None:
    with pytest.raises(RefusedError, match="give the user and password") as wrong:
        await own_store.sink(url=own_store.url.replace("//", "//nobody:guess@")).__aenter__()
    own_store.client.config_set("requirepass", "real-secret")
    with pytest.raises(RefusedError, match="NOAUTH") as missing:
        await own_store.sink().__aenter__()
    with pytest.raises(RefusedError, match="out of range"):
        url = own_store.url.replace("//", "//:real-secret@") + "/99"
        await own_store.sink(url=url).__aenter__()
    async with own_store.sink(url=own_store.url.replace("//", "//:real-secret@")) as sink:
        assert await written(sink, [{"n": 1}]) == {}
    assert "guess" not in str(wrong.value) + repr(missing.value)


# -- values, connections, repr ---------------------------------------------------------------------


async def test_large_and_binary_values_arrive_as_they_are(store: Store) -> None:
    """Large ones far exceed a part, between small ones."""
    large = bytes(range(256)) * 20_000
    items = [{"n": 1}, {"n": 2, "data": large}, {"n": 3}, {"n": 4, "data": b"\r\n$-1\r\n"}]
    async with store.sink() as sink:
        assert await written(sink, items) == {}
    assert store.numbers() == [1, 2, 3, 4]
    assert store.entries()[1][1][b"data"] == large
    assert store.entries()[3][1][b"data"] == b"\r\n$-1\r\n"


async def test_a_cancelled_write_leaves_no_answer_behind(own_store: Store) -> None:
    """The next write reads its own replies on the same connection."""
    async with own_store.sink(pool_size=1) as sink:
        assert await written(sink, [{"n": 0}]) == {}
        await asyncio.to_thread(own_store.server.pause)
        write = asyncio.create_task(written(sink, [{"n": 1}, {"n": 2}]))
        await LoopClock().sleep(0.05)
        write.cancel()
        await asyncio.wait([write])
        assert write.cancelled()
        following = asyncio.create_task(sink.write(RowBatch([{"n": 3}])))
        await LoopClock().sleep(0.05)
        await asyncio.to_thread(own_store.server.resume)
        result = await following
    assert result is not None
    ids = dict(own_store.entries())
    assert ids[str(result.details[0])] == {b"n": b"3"}


async def test_a_silent_server_is_given_up(own_store: Store) -> None:
    """It may execute the received commands when it resumes."""
    async with own_store.sink() as patient, own_store.sink(timeout=0.5) as sink:
        await asyncio.to_thread(own_store.server.pause)
        batch = RowBatch([{"n": 1}])
        assert names(await send(sink, batch)) == {0: "TimedOutError"}
        await asyncio.to_thread(own_store.server.resume)
        assert await send(patient, batch) == {}  # a busy machine is slow
    assert set(own_store.numbers()) == {1}


async def test_a_client_of_a_function_is_used_and_closed(store: Store) -> None:
    """Whatever its own settings for retries and decoding."""
    made: list[Any] = []

    async def client() -> Any:
        made.append(redis_asyncio.Redis.from_url(store.url, decode_responses=True, protocol=3))
        return made[-1]

    sink = RedisSink(client=client, stream=STREAM, id="n", on_conflict="ignore")
    async with sink:
        for _ in range(2):
            assert await written(sink, [{"n": 1}, {"n": "2"}]) == {}
    assert store.numbers() == [1, 2]
    (pool,) = [each.connection_pool for each in made]
    assert not any(each.is_connected for each in pool._available_connections)
    wrong = RedisSink(client=lambda: object(), stream=STREAM)
    with pytest.raises(ConfigError, match=r"must return a redis\.asyncio\.Redis"):
        await wrong.__aenter__()


async def test_a_sink_that_is_not_open_writes_nothing(store: Store) -> None:
    with pytest.raises(ClosedError, match="not open"):
        await store.sink().write(RowBatch([{"n": 1}]))


def test_secrets_are_not_shown() -> None:
    url = "rediss://user:much-too-secret@host:6380/2?client_name=another-secret"
    sink = RedisSink(url, stream=STREAM, client_options={"ssl_keyfile": "third-secret"})
    assert repr(sink) == "RedisSink('rediss://host:6380/2', stream='events')"
    told = repr(vars(sink))
    assert "secret" not in told


def function_of_two(_: object, __: object) -> str:
    return ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "url=None: must be given, or client="),
        ({"url": "http://secret@h", "stream": "s"}, "url='http://...': must be a URL"),
        ({"url": "redis://", "stream": "s"}, "url=...: must be a URL"),
        ({"url": "redis://h:port", "stream": "s"}, "a port is a number"),
        ({"url": 5, "stream": "s"}, "url='int': must be a URL"),
        (
            {"url": "redis://h?retry_on_timeout=yes", "stream": "s"},
            "url with retry_on_timeout: is set",
        ),
        ({"url": "redis://h?colour=red", "stream": "s"}, "url with colour: is not an option"),
        ({"url": "redis://h"}, "stream=None: must be given, or stream_field"),
        ({"url": "redis://h", "stream": "s", "stream_field": "l"}, "stream='s': must be given"),
        ({"url": "redis://h", "stream": ""}, "stream='': must be text"),
        ({"url": "redis://h", "stream": function_of_two}, "stream=<function"),
        ({"url": "redis://h", "stream": "s", "maxlen": 0}, "maxlen=0: must be a whole number"),
        (
            {"url": "redis://h", "stream": "s", "maxlen": 5, "max_age": 5},
            "max_age=5: cannot be combined",
        ),
        ({"url": "redis://h", "stream": "s", "max_age": -1}, "max_age=-1: must be more than 0"),
        (
            {"url": "redis://h", "stream": "s", "on_conflict": "ignore"},
            "on_conflict='ignore': requires id=",
        ),
        (
            {"url": "redis://h", "stream": "s", "id": "n", "on_conflict": "x"},
            "on_conflict='x': must be",
        ),
        ({"url": "redis://h", "stream": "s", "fields": "n"}, "fields='n': must be names"),
        ({"url": "redis://h", "stream": "s", "fields": [5]}, "fields=5: must be text"),
        (
            {"url": "redis://h", "stream": "s", "fields": ["n"], "encode": str},
            "fields=['n']: cannot be combined",
        ),
        ({"url": "redis://h", "stream": "s", "encode": 5}, "encode=5: must be a function"),
        ({"url": "redis://h", "stream": "s", "create": 1}, "create=1: must be True or False"),
        ({"url": "redis://h", "stream": "s", "timeout": 0}, "timeout=0: must be more than 0"),
        (
            {"url": "redis://h", "stream": "s", "pool_size": 0},
            "pool_size=0: must be a whole number",
        ),
        (
            {"url": "redis://h", "stream": "s", "client_options": {"retry": 5}},
            "client_options with retry",
        ),
        (
            {"url": "redis://h", "stream": "s", "client_options": {"x": 5}},
            "client_options with x: is not",
        ),
        (
            {"url": "redis://h", "stream": "s", "client": dict},
            "url='...': cannot be combined with client=",
        ),
        ({"client": 5, "stream": "s"}, "client=5: must be a function"),
        (
            {"client": dict, "stream": "s", "client_options": {"db": 5}},
            "client_options='...': requires a URL",
        ),
        ({"url": "redis://h", "streem": "s"}, "stream"),
    ],
)
def test_bad_arguments_are_refused_with_their_rule(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisSink(**arguments)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)
