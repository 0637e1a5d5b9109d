"""`sluicegate tune`: find limits for a given load."""
