"""Queues in PostgreSQL: what their sink, their source and their operators share."""
