"""`sluicegate queue`: operate the queues of a schema."""
