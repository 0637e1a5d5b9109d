"""Sinks that wrap one sink."""
