"""Embedded servers, their processes and their guards."""
