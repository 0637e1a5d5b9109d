"""The log of streams in PostgreSQL: how it is written and read, and the subscriptions' state."""
