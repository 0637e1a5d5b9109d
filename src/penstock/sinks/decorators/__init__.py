"""Sinks around one sink."""
