"""Preparation of a write on the driver."""
