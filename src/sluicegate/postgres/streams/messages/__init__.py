"""The log of streams in PostgreSQL: writing, reading, and the state of subscriptions."""
