"""Periodic looks at a schema, for metrics and alerts."""
