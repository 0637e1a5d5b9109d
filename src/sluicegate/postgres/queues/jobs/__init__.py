"""Queues in PostgreSQL: the parts shared by sink, source and administration."""
