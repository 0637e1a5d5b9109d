"""`penstock pg`: install streams and queues in PostgreSQL, upgrade them, check them."""
