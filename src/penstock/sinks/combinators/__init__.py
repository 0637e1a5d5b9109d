"""Sinks around several sinks."""
