"""Queues in PostgreSQL, each with the same jobs."""
