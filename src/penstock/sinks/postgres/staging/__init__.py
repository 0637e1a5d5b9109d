"""Stages: tables that are published at once."""
