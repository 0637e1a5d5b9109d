"""Delivery levels of a write."""
