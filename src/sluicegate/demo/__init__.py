"""`sluicegate demo`: a year of flights through a batcher."""
