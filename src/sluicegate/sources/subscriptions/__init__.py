"""Positions and locks of subscriptions, in memory, SQLite, PostgreSQL or a provider of your own."""

from ..._core.public import publish_all
from ..._core.subscriptions import (
    SLOTS,
    CountsMembers,
    Move,
    Subscribed,
    SubscriptionLocks,
    SubscriptionStart,
    SubscriptionState,
    locked_slot,
    slot_lock,
)
from .memory import MemorySubscriptions
from .postgres.advisory import PostgresAdvisoryLocks
from .postgres.subscriptions import PostgresSubscriptions
from .sqlite import SQLiteSubscriptions

__all__ = [
    "SLOTS",
    "CountsMembers",
    "MemorySubscriptions",
    "Move",
    "PostgresAdvisoryLocks",
    "PostgresSubscriptions",
    "SQLiteSubscriptions",
    "Subscribed",
    "SubscriptionLocks",
    "SubscriptionStart",
    "SubscriptionState",
    "locked_slot",
    "slot_lock",
]

publish_all(__name__)
