"""Subscriptions in PostgreSQL."""
