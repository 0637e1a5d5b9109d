"""The sink for Redis streams and lists."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from .._core import checks
from .._core.batch import RowBatch
from .._core.errors import ClosedError
from .._core.keywords import known_arguments
from .._core.logs import log_safely
from .._core.opening import Openable
from .._core.sink import Capabilities
from .._core.values.encoding import getter
from .commands import StreamForm, fields_of
from .connections import RedisConnections, RedisOptions
from .refusals import classify_redis
from .write import RedisWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.errors import ErrorClass
    from .._core.sink import WriteResult
    from .._core.values.encoding import Encode

logger = logging.getLogger("sluicegate.redis")
_EVICTS = (
    "%r: the server removes any keys when its memory is full (maxmemory-policy %s), so delivered items "
    "may be lost with their stream; set the policy to noeviction"
)
_NO_KEYS = (
    "the ids of its stream must increase over all items, but items of other keys or tenants do not wait "
    "for an item in a backoff, which would be refused after them; leave it out"
)


@known_arguments()
class RedisSink(Openable):
    """Writes items as entries of a Redis stream, many in one exchange.

    Give `stream` or `stream_field`.

    Args:
        url: `"redis://user:password@host:6379/0"`, `"rediss://..."` with TLS, or `"unix:///path"`.
            The password is never shown.
        stream: the stream's name, or a function from an item to it.
        stream_field: the field that contains the name of an item's stream.
        fields: the names of an item's fields to store, or a function from an item to a
            mapping. Default: all fields of a mapping, dataclass, model and so on; one field `value`
            for any other item. Bytes are stored unchanged, text in UTF-8, other values as JSON;
            fields with `None` are omitted.
        encode: a function from an item to bytes or text, which becomes the field `value` of its
            entry; instead of `fields`.
        id: the field that contains an entry's id, or a function from an item to it:
            `"1700000000000-0"`, or milliseconds. Ids must increase within a stream, so a `Batcher`
            with `key` or `tenant` refuses a sink of one `stream` with ids. Default: Redis generates
            them.
        on_conflict: for entries with an `id` that is not higher than the stream's last. `"error"`
            (default): the entry is refused. `"ignore"`: it is delivered if the stream has it with
            the same fields.
        maxlen: the maximum number of entries to keep; the oldest are removed. Default:
            no limit.
        max_age: seconds for which entries are kept, by their ids and this machine's
            clock.
        approximate: whether trimming may keep a few more entries, which is much
            cheaper. Default `True`.
        create: whether a stream that does not exist is created. Default `True`.
        client: a function, async or not, that returns the `redis.asyncio.Redis` to use, such as
            that of a Sentinel's master; instead of `url`. The sink closes it.
        client_options: other options of `redis.asyncio.Redis`, such as `ssl_ca_certs` or
            `client_name`. Never shown.
        pool_size: number of connections, and therefore of concurrent writes; default 10, no limit
            with `client=`.
        timeout: seconds for connecting, for each part of a batch (about 1 MiB) with its replies,
            and for closing; default 5.

    Raises `ConfigError` for a bad argument and `MissingExtra` without redis-py. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects. It raises `RefusedError` for
    a refused login or certificate, and `UnavailableError` if no server responds or the server is
    still loading its data. It logs a warning if the server's `maxmemory-policy` may evict the stream.
    """

    _run_time = ("_connections",)

    def __init__(
        self,
        url: str | None = None,
        *,
        stream: str | Callable[[Any], str] | None = None,
        stream_field: str | None = None,
        fields: Sequence[str] | Callable[[Any], Mapping[str, Any]] | None = None,
        encode: Encode | None = None,
        id: str | Callable[[Any], str | int | None] | None = None,  # noqa: A002  # Redis's own word
        on_conflict: Literal["error", "ignore"] = "error",
        maxlen: int | None = None,
        max_age: float | timedelta | None = None,
        approximate: bool = True,
        create: bool = True,
        client: Callable[[], Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        pool_size: int | None = None,
        timeout: float | timedelta = 5.0,
    ) -> None:
        self._options = RedisOptions.of(
            url=url,
            client=client,
            client_options=client_options,
            pool_size=pool_size,
            timeout=timeout,
        )
        self._client_options = self._options.client_options  # the name in pickling errors
        self._connections: RedisConnections | None = None
        name, self._name = _choose_stream(stream, stream_field)
        encode = checks.optional_function("encode", encode, "must be a function of an item")
        maxlen = checks.optional_count("maxlen", maxlen)
        if maxlen is not None and max_age is not None:
            raise checks.bad(
                "max_age",
                max_age,
                "cannot be combined with maxlen; Redis trims by only one of them",
            )
        checks.choice("on_conflict", on_conflict, ("error", "ignore"))
        if on_conflict == "ignore" and id is None:
            raise checks.bad(
                "on_conflict", on_conflict, "requires id=, which identifies the entries"
            )
        self._form = StreamForm(
            name=name,
            fields=fields_of(fields, encode),
            id=_getter("id", id),
            maxlen=maxlen,
            max_age=checks.optional_seconds("max_age", max_age, usual=checks.LONG_PERIOD),
            approximate=checks.flag("approximate", approximate),
            create=checks.flag("create", create),
            ignores_known=on_conflict == "ignore",
        )
        if self._is_single:
            self.refuses_keys = _NO_KEYS

    @property
    def capabilities(self) -> Capabilities:
        """`key_prefix_safe`: in a batch with keys, nothing is stored after a failed item of the
        same key.

        Idempotent only with ids and `on_conflict="ignore"`, repeatable with ids. One write at a time to a stream with
        ids, since they must increase; otherwise one for each connection. A `Retry` keeps a refused
        batch whole if its entries have ids.
        """
        return Capabilities(
            key_prefix_safe=True,
            idempotent=self._form.ignores_known,
            repeatable="item" if self._form.ordered else None,
            # Redis decides about each entry by itself. A search for an item at fault would let later
            # entries pass, and the ids of those before them would be too low.
            several_destinations=self._name is None or self._form.ordered,
            max_concurrency=1 if self._is_single else self._options.pool_size,
        )

    @property
    def _is_single(self) -> bool:
        """Whether all items are entries of one stream, with their own ids."""
        return self._form.ordered and self._name is not None

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by the server's message."""
        return classify_redis(error)

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = RedisConnections(await self._options.make(), self._options)
        stack.push_async_callback(connections.close)
        await connections.check()
        if (policy := await connections.eviction_policy()) is not None:
            log_safely(logger, logging.WARNING, _EVICTS, self, policy)
        self._connections = connections

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch`, in order; suspends until Redis has replied for each.

        The details of an entry are its id. An item fails with `PermanentError` (it cannot become an
        entry, or its id is too low), `TooLargeError`, `RefusedError` (a login, a
        permission, a key of another type, full memory, a replica, a stream that does not exist with
        `create=False`), `UnavailableError` (no connection, or a server that loads its data, runs a
        script or lacks its replicas; not stored), `UnknownOutcomeError` (no reply: it may be
        stored), `UnverifiableError` (an earlier attempt may have stored it, but the entry no longer
        exists), its subclass `StoredRowDiffers` (an entry of other fields has its id) or `KeyStopped`
        (after a failed item of its key). With an `id`, an entry whose outcome was unknown and that
        exists with the same fields is a `duplicate`; behind an item of the batch with its id it is
        refused (`KeyRepeated`). Raises `ClosedError` while the sink is
        not open. Items of a cancelled write that were in flight may be stored.
        """
        connections = self._connections
        if connections is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        if not len(batch):
            return None
        items = batch.items if isinstance(batch, RowBatch) else tuple(batch)
        prepared = self._form.prepare(items, connections.longest)
        return await RedisWrite(connections, batch, prepared, self._form).run()

    def __repr__(self) -> str:
        name = "..." if self._name is None else repr(self._name)
        return f"RedisSink({self._options.place!r}, stream={name})"


def _choose_stream(stream: Any, field: Any) -> tuple[Any, str | None]:
    """The name, field or function that determines an item's stream, and the name if it is the same
    for all items.
    """
    if (stream is None) == (field is None):
        raise checks.bad("stream", stream, "must be given, or stream_field, and not both")
    if field is not None:
        return getter("stream_field", checks.text("stream_field", field)), None
    if callable(stream):
        return _getter("stream", stream), None
    name = checks.text("stream", stream)
    return name, name


def _getter(name: str, value: Any) -> Any:
    if callable(value):
        checks.function(name, value, "must be a field's name or a function of an item")
    return getter(name, value)
