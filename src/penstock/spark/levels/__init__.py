"""Delivery levels: units, transactions of buckets, and one publication of everything."""
