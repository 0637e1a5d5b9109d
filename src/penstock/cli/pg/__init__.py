"""`penstock pg`: install a stream log in PostgreSQL, upgrade it, check it."""
