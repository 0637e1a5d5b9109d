"""Simulated load on virtual time."""
