"""The delivery level of a write, checked on the driver before anything runs.

`at_least_once` has no requirements, and may write rows again when a task runs again. `bucket`
commits each key bucket once, in its own transaction. `atomic` commits everything at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..._core import checks
from ..._core.staging import Epoch, check_staging
from ..._core.transaction import Unit, check_transactional
from .units import Units

if TYPE_CHECKING:
    from ..._core.sink import Sink

DeliveryLevel = Literal["at_least_once", "bucket", "atomic"]
WriteMode = Literal["append", "overwrite"]


@dataclass(frozen=True, slots=True)
class Level:
    """The delivery level of one write, and the name under which its commits are stored."""

    delivery: DeliveryLevel
    mode: WriteMode
    key: tuple[str, ...]
    application: str | None
    version: int | None

    def units(
        self, buckets: int, *, types: str, content_of: str, buffer_bytes: int
    ) -> Units | None:
        """The units of the write, if a replay has units of the same names."""
        if self.application is None or self.version is None or self.delivery == "atomic":
            return None
        return Units(
            application=self.application,
            version=self.version,
            buckets=buckets,
            key=self.key,
            in_transactions=self.delivery == "bucket",
            types=types,
            content_of=content_of,
            buffer_bytes=buffer_bytes,
        )

    def epoch(self) -> Epoch | None:
        """The epoch to publish at `atomic`; `None` at other levels."""
        if self.application is None or self.version is None or self.delivery != "atomic":
            return None
        unit = Unit(application=self.application, version=self.version, rule=f"atomic {self.mode}")
        return Epoch(unit=unit, overwrite=self.mode == "overwrite", ordered=bool(self.key))


def level(
    sink: Sink[Any],
    *,
    delivery: DeliveryLevel,
    mode: WriteMode,
    app_id: str | None,
    version: int | None,
    key: tuple[str, ...],
) -> Level:
    """Check the level. Raises `ConfigError` if the sink or the arguments cannot provide it."""
    checks.choice("delivery", delivery, get_args(DeliveryLevel))
    if checks.choice("mode", mode, get_args(WriteMode)) == "overwrite" and delivery != "atomic":
        raise checks.bad(
            "mode",
            mode,
            f'needs delivery="atomic": at {delivery!r} readers would see a partly filled table',
        )
    _check_name(delivery, app_id, version)
    if not key and delivery == "bucket":
        raise checks.bad(
            "delivery",
            delivery,
            "needs key: each bucket of keys commits once, independent of Spark's partitions",
        )
    if not key and app_id is not None and delivery == "at_least_once":
        raise checks.bad(
            "app_id",
            app_id,
            "needs key: a partition may have other rows when the write is repeated, so it has no "
            "name",
        )
    if delivery == "bucket":
        check_transactional(sink)
    elif delivery == "atomic":
        check_staging(sink)
    return Level(delivery, mode, key, app_id, version)


def _check_name(delivery: DeliveryLevel, app_id: str | None, version: int | None) -> None:
    for name, value, other in (("app_id", app_id, version), ("version", version, app_id)):
        if value is None and (other is not None or delivery != "at_least_once"):
            rule = (
                "must be given together with the other one of app_id and version"
                if other is not None
                else f"is needed for delivery={delivery!r}"
            )
            raise checks.bad(
                name,
                value,
                f"{rule}: together they name the write, and a repeated write has the same name",
            )
    if app_id is not None and version is not None:
        Unit(application=app_id, version=version)
