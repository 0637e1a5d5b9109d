"""`penstock dlq`: look at dead letters, send them again, remove them."""
