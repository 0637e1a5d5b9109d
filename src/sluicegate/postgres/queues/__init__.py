"""Queues in PostgreSQL: jobs, their sink and source, and how they are operated."""
