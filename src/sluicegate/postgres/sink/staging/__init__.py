"""Stages: tables whose rows are published together."""
