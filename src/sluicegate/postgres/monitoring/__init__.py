"""Periodic polls of a schema, for metrics and alerts."""
