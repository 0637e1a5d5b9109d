"""`sluicegate pg`: install, upgrade and check streams and queues in PostgreSQL."""
