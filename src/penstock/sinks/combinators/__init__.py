"""Sinks that combine several sinks."""
