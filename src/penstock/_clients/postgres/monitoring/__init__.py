"""Looks at a schema from time to time, for metrics and alerts."""
