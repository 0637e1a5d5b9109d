"""Transactions and the ledger of committed units."""
