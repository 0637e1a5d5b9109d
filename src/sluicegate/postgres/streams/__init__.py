"""Streams in PostgreSQL: messages, their sink and source, and how they are operated."""
