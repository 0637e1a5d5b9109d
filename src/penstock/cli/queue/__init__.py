"""`penstock queue`: operate the queues of a schema."""
